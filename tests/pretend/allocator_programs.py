"""Programs for an allocator, by hand or drawn; each replay is compared with the slow one."""

import math
from dataclasses import replace

import numpy as np
from tests.pretend.slow_allocator import slow_replay

from brimful.allocator.config import PYTORCH_DEFAULTS, UNLIMITED_BYTES
from brimful.allocator.replay import Requests, replay
from brimful.units import GIB, MIB

from .recordings import bare

NATIVE = PYTORCH_DEFAULTS
EXPANDABLE = replace(NATIVE, expandable_segments=True)


class Program:
    """Events written one after the other; every replay is compared with the slow one."""

    def __init__(self):
        self.events, self.num_bytes, self.streams, self.until = [], [], [], []
        self.flushes = []

    def take(self, *sizes, stream=0, until=0):
        """Allocate, and return the row (the last of several)."""
        for num_bytes in sizes:
            self.events.append(len(self.num_bytes))
            self.num_bytes.append(num_bytes)
            self.streams.append(stream)
            self.until.append(until)
        return len(self.num_bytes) - 1

    def give(self, *rows):
        self.events.extend(~row for row in rows)

    def flush(self):
        self.flushes.append(len(self.events))

    def recording(self):
        return bare(
            self.events,
            self.num_bytes,
            streams=self.streams,
            until=self.until,
            flushes=self.flushes,
        )

    def requests(self):
        columns = (self.events, self.num_bytes, self.streams, self.until, self.flushes)
        events, num_bytes, streams, until, flushes = (np.array(x, dtype=np.int64) for x in columns)
        return Requests(
            events=events,
            num_bytes=num_bytes,
            streams=streams,
            in_use_until=until,
            cache_flushes=flushes,
        )

    def replay(self, settings=NATIVE, capacity_bytes=None):
        columns = (self.events, self.num_bytes, self.streams, self.until)
        fast = replay(self.requests(), settings=settings, capacity_bytes=capacity_bytes)
        self.slow, expected = slow_replay(columns, settings, capacity_bytes, set(self.flushes))
        assert fast == expected
        return fast


def drawn_size(rng):
    """Log-uniform from 1 B to 2 GiB, and every third one on an edge of some rule."""
    if rng.random() < 1 / 3:
        return rng.choice((1, 10, 18, 20, 21, 40, 64, 84, 256)) * MIB + rng.choice((-1, 0, 0, 1))
    return int(math.exp(rng.uniform(0, math.log(2 * GIB))))


def drawn_program(rng):
    """Two to twelve sizes that come again and some that do not; one to three streams.

    Every second program empties its cache now and then.
    """
    program, alive = Program(), []
    flush_share = rng.choice([0, 0.03])
    sizes = [drawn_size(rng) for _ in range(rng.randint(2, 12))]
    num_streams = rng.randint(1, 3)
    for _ in range(rng.randint(20, 240)):
        if rng.random() < flush_share:
            program.flush()
        if alive and rng.random() < 0.47:
            program.give(alive.pop(rng.randrange(len(alive)) if rng.random() < 0.6 else -1))
            continue
        num_bytes = rng.choice([*sizes, *sizes, drawn_size(rng), 0])
        until = 0 if rng.random() < 0.8 else len(program.events) + rng.randint(1, 40)
        alive.append(program.take(num_bytes, stream=rng.randrange(num_streams), until=until))
    return program


def live_peak(program):
    alive = peak = 0
    for event in program.events:
        alive += program.num_bytes[event] if event >= 0 else -program.num_bytes[~event]
        peak = max(peak, alive)
    return peak


def drawn_settings(rng, peak):
    allowed = None if rng.random() < 0.4 else int(peak * rng.uniform(0.6, 2))
    collects = allowed is not None and rng.random() < 0.7
    no_rounding = rng.random() < 0.6
    return replace(
        NATIVE,
        expandable_segments=rng.random() < 0.45,
        max_split_size_bytes=rng.choice([UNLIMITED_BYTES, *(n * MIB for n in (20, 21, 64, 256))]),
        max_non_split_rounding_bytes=rng.choice([20, 40, 200]) * MIB,
        roundup_power2_divisions=tuple(
            0 if no_rounding else rng.choice([0, 1, 2, 4, 8]) for _ in range(16)
        ),
        garbage_collection_threshold=rng.uniform(0.1, 0.7) if collects else 0.0,
        allowed_bytes=allowed,
    )
