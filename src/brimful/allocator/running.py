"""The caching allocator beside a program that still runs: what it has reserved so far.

Owns a replay that goes on where it stopped. Beside ``replay.py`` it knows no end: a block that
other streams use is taken to be free as soon as the program frees it.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from brimful.allocator.config import SMALL_BYTES, AllocatorSettings, round_sizes, segment_sizes
from brimful.allocator.state import CachingAllocator

if TYPE_CHECKING:
    from brimful.allocator.pool import Pool

Asked = Callable[[NDArray[np.int64]], tuple[NDArray[np.int64], NDArray[np.int64]]]


class Running:
    """A replay of events as they come."""

    def __init__(self, settings: AllocatorSettings) -> None:
        """Begin with a device that holds nothing, and has no end."""
        self._num_events = self._num_flushes = 0
        self._settings = settings
        self._allocator = CachingAllocator(settings, None)
        self._blocks: dict[int, tuple[Pool, int]] = {}

    def catch_up(self, events: Sequence[int], flushes: Sequence[int], asked: Asked) -> None:
        """Replay what happened since it was last asked.

        ``events``: all so far, signed: ``i`` allocates row i, ``~i`` frees it. ``flushes``: events
        before which the program emptied the cache, all so far, rising. ``asked``: returns the bytes
        and the streams of rows.
        """
        for stop in flushes[self._num_flushes :]:
            self._go_on(events[self._num_events : stop], asked)
            self._allocator.empty_cache()
        self._go_on(events[self._num_events :], asked)
        self._num_flushes = len(flushes)

    def _go_on(self, events: Sequence[int], asked: Asked) -> None:
        self._num_events += len(events)
        born = np.array([row for row in events if row >= 0], dtype=np.int64)
        if not len(events):
            return
        num_bytes, streams = asked(born)
        sizes = round_sizes(num_bytes, self._settings.roundup_power2_divisions)
        places = zip(sizes.tolist(), segment_sizes(sizes).tolist(), streams.tolist(), strict=True)
        for row in events:
            if row < 0:
                if (held := self._blocks.pop(~row, None)) is not None:
                    self._allocator.free(*held)
                continue
            size_bytes, segment_bytes, stream = next(places)
            if size_bytes:
                pool = self._allocator.pool(stream, is_small=size_bytes <= SMALL_BYTES)
                block = self._allocator.allocate(pool, size_bytes, segment_bytes)
                self._blocks[row] = pool, block

    @property
    def reserved_bytes(self) -> int:
        """Held from the device now."""
        return self._allocator.reserved_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that it held since the peak was last reset."""
        return self._allocator.peak_reserved_bytes

    def reset_peak(self) -> None:
        """Begin the peak again with what is held now."""
        self._allocator.peak_reserved_bytes = self._allocator.reserved_bytes
