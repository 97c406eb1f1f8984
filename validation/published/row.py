"""The values that the rebuilt programs share: a published measurement and what a simulation says.

Owns how rows are read and how a recording becomes the numbers to compare. Knows nothing of any
program.
"""

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import msgspec
import numpy as np

from brimful.allocator.config import PYTORCH_DEFAULTS
from brimful.allocator.replay import Replay, Requests, replay
from brimful.errors import InputError
from brimful.pretend.recording import NEVER, Recording

ConfigT = TypeVar("ConfigT")
MemoryClass = Literal["allocated", "active", "reserved"]
BLOCK_BYTES = 512
"""Every request of the caching allocator is rounded to a multiple of it."""
NUM_OWNERS = 12
GIB = 1 << 30


class Row(msgspec.Struct, Generic[ConfigT], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published measurement and the program that it was taken of.

    Attributes:
        id: Its name here.
        family: Which program it belongs to.
        published_gib: Peak memory of one GPU, in GiB.
        mem_class: What was measured.
        config: The program's settings.
        source: Where it was published.
        date: When.
        versions: Of the libraries that ran it.
        note: What else is known, in our words.
    """

    id: str
    family: str
    published_gib: float
    mem_class: MemoryClass
    config: ConfigT
    source: str
    date: str
    versions: str
    note: str = ""


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """What the simulation of one row says; bytes of one GPU.

    Attributes:
        live_bytes: Peak of what tensors asked for.
        allocated_bytes: Peak of the same, each request rounded to 512 bytes.
        replayed_allocated_bytes: Peak of the blocks that the allocator hands out for it.
        reserved_bytes: Peak of what the allocator holds from the device, native segments.
        end_bytes: What is allocated at the end.
        num_events: Allocations and frees.
        peak_phase: Phase of the peak.
        owners: Who held most at the peak: label and bytes, largest first.
    """

    live_bytes: int
    allocated_bytes: int
    replayed_allocated_bytes: int
    reserved_bytes: int
    end_bytes: int
    num_events: int
    peak_phase: str
    owners: tuple[tuple[str, int], ...]


def read_rows(path: Path, config_type: type[ConfigT]) -> tuple[Row[ConfigT], ...]:
    """Read a file of rows.

    Args:
        path: JSON, an array.
        config_type: The settings of the program.
    """
    return msgspec.json.decode(path.read_bytes(), type=tuple[Row[config_type], ...])


def compared_bytes(row: Row[Any], simulated: Simulated) -> int:
    """Return the simulated number that belongs to what was published.

    Args:
        row: Its ``mem_class`` decides.
        simulated: The simulation.
    """
    if row.mem_class == "reserved":
        return simulated.reserved_bytes
    return simulated.replayed_allocated_bytes


def summarise(
    recording: Recording, *, start: int = 0, end: int, capacity_bytes: int | None = None
) -> Simulated:
    """Reduce a recording to the numbers that are compared.

    Args:
        recording: Of the whole program, loading included.
        start: Event at which the program reset its peak statistics.
        end: Event at which it read them.
        capacity_bytes: What the device can give the allocator; None: anything.
    """
    rows = np.where(recording.events >= 0, recording.events, ~recording.events)
    sign = np.where(recording.events >= 0, 1, -1)
    rounded = -(-recording.num_bytes // BLOCK_BYTES) * BLOCK_BYTES
    allocated = np.cumsum(sign * rounded[rows])
    peak = start + int(allocated[start:end].argmax())
    reserved = _replay(recording, start, capacity_bytes)
    return Simulated(
        live_bytes=int(recording.live_bytes()[start:end].max()),
        allocated_bytes=int(allocated[peak]),
        replayed_allocated_bytes=reserved.peak_allocated_bytes,
        reserved_bytes=reserved.peak_reserved_bytes,
        end_bytes=int(allocated[end - 1]),
        num_events=len(recording.events),
        peak_phase=recording.phases[np.searchsorted(recording.phase_starts, peak, "right") - 1],
        owners=_owners(recording, peak),
    )


def _replay(recording: Recording, start: int, capacity_bytes: int | None) -> Replay:
    """Replay without the rows that died before the cache was last emptied before ``start``.

    A program that empties the cache before it resets its statistics has given their memory back.
    """
    flushes = recording.cache_flushes[recording.cache_flushes <= start]
    gone = recording.died < (flushes[-1] if len(flushes) else 0)
    gone &= recording.died != NEVER
    rows = np.where(recording.events >= 0, recording.events, ~recording.events)
    events = recording.events[~gone[rows]]
    num_dropped = len(recording.events) - len(events)
    requests = Requests(
        events=events,
        num_bytes=recording.num_bytes,
        streams=recording.stream.astype(np.int64),
        in_use_until=np.maximum(recording.in_use_until - num_dropped, 0),
    )
    return replay(requests, settings=PYTORCH_DEFAULTS, capacity_bytes=capacity_bytes)


def _owners(recording: Recording, event: int) -> tuple[tuple[str, int], ...]:
    """Add up what is alive at an event by class, operation and shape, the largest first."""
    totals: dict[str, int] = {}
    for row in recording.alive_at(event).tolist():
        shape, dtype = recording.shapes[recording.shape_dtype[row]]
        label = recording.items[recording.item[row]] or recording.ops[recording.op[row]]
        key = f"{label} {shape} {dtype}"
        totals[key] = totals.get(key, 0) + int(recording.num_bytes[row])
    return tuple(sorted(totals.items(), key=lambda x: -x[1])[:NUM_OWNERS])


def main(
    rows: Iterable[Any],
    simulate_row: Callable[[Any], Simulated],
    compare: Callable[[Any, Simulated], int],
) -> int:
    """Simulate the rows that are asked for and print each beside what was published.

    Args:
        rows: All there are.
        simulate_row: Runs one; an ``InputError`` says why it cannot be.
        compare: Picks the bytes to compare.

    Returns:
        Exit code: 1 if no row has the name.
    """
    parser = argparse.ArgumentParser()
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--row")
    chosen.add_argument("--all", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = [row for row in rows if arguments.all or row.id == arguments.row]
    for row in found:
        try:
            simulated = simulate_row(row)
        except InputError as error:
            print(f"{row.id} is not simulated: {error}", file=sys.stderr)
            continue
        num_bytes = compare(row, simulated)
        error_share = num_bytes / GIB / row.published_gib - 1
        if arguments.json:
            fields = msgspec.to_builtins(simulated)
            said = {"id": row.id, "compared_bytes": num_bytes, "error": error_share, **fields}
            print(msgspec.json.encode(said).decode(), flush=True)
        else:
            published, here = row.published_gib, num_bytes / GIB
            print(f"{row.id:60} {published:9.3f} {here:9.3f} {error_share:+8.3%}", flush=True)
    return 0 if found else 1
