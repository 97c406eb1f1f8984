"""Requests replayed through PyTorch's CUDA caching allocator: what a program reserves.

Owns the walk over a tape's events and what it says; the rules are in ``state.py``. Knows
nothing of who allocated what, and needs no torch.

What real runs do beside it: memory that never passes the allocator (context, NCCL, graphs' private
pools) is the caller's to take off the capacity; addresses of ``cudaMalloc`` are assumed to rise;
``cudaMalloc`` is assumed to fail only for want of bytes.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from brimful.allocator.config import SMALL_BYTES, AllocatorSettings, round_sizes, segment_sizes
from brimful.allocator.pool import ADDRESS_BITS, ADDRESS_MASK, Change, Pool
from brimful.allocator.state import CachingAllocator


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReserved:
    """What one pool holds of the device.

    Attributes:
        stream: The stream that it serves.
        is_small: Whether it serves requests of at most 1 MiB.
        reserved_bytes: What it holds.
    """

    stream: int
    is_small: bool
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """The request at which the device ran out, after everything cached was given back.

    Attributes:
        event: Which event of the tape it was.
        requested_bytes: What was asked for.
        short_bytes: How much more the device would have had to give.
        reserved_bytes: What the allocator held then.
    """

    event: int
    requested_bytes: int
    short_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What the allocator's own statistics would have said at the end of the tape.

    Attributes:
        peak_allocated_bytes: ``allocated_bytes.all.peak``: blocks handed out, with their rounding.
        peak_requested_bytes: ``requested_bytes.all.peak``: the same as the program asked for it,
            until the block is really free.
        peak_active_bytes: ``active_bytes.all.peak``: allocated, or freed but used by other streams.
        peak_reserved_bytes: ``reserved_bytes.all.peak``: held from the device.
        peak_inactive_split_bytes: ``inactive_split_bytes.all.peak``: free parts of segments partly
            in use, which cannot be given back; of native segments only, as PyTorch counts it.
        num_retries: ``num_alloc_retries``: requests for which everything cached was given back.
        out_of_memory: Where the tape came to its end; None: it completed.
        reserved_at_peak: What each pool held when most was first reserved, by stream, small before
            large; pools that held nothing are left out.
    """

    peak_allocated_bytes: int
    peak_requested_bytes: int
    peak_active_bytes: int
    peak_reserved_bytes: int
    peak_inactive_split_bytes: int
    num_retries: int
    out_of_memory: OutOfMemory | None
    reserved_at_peak: tuple[PoolReserved, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A replay with the places of its blocks.

    Attributes:
        replay: What the statistics say.
        addresses: Where each row's block lay, in bytes; -1 for a row that got none.
        block_bytes: Its size; 0 for a row that got none.
        changes: What happened to device memory beside the tape's own events, in order; each before
            the event of the tape that it names.
        num_events: How many events of the tape were replayed: all, or those before it ran out.
    """

    replay: Replay
    addresses: NDArray[np.int64]
    block_bytes: NDArray[np.int64]
    changes: tuple[Change, ...]
    num_events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """What a program asks of the allocator, in order.

    Attributes:
        events: Signed order of events: ``i`` allocates row i, ``~i`` frees it.
        num_bytes: Requested size of each row; rows of 0 bytes take no block.
        streams: Stream on which each row is allocated; None: all on stream 0.
        in_use_until: Event from which other streams have done with each row (``record_stream``).
            A row freed before that is free at the first allocation from then on, or when the
            allocator waits for all streams to empty its cache. None: no other stream uses any.
        cache_flushes: Events before which the program called ``torch.cuda.empty_cache``, rising;
            None: it never did.
    """

    events: NDArray[np.int64]
    num_bytes: NDArray[np.int64]
    streams: NDArray[np.int64] | None = None
    in_use_until: NDArray[np.int64] | None = None
    cache_flushes: NDArray[np.int64] | None = None


def replay(
    requests: Requests, *, settings: AllocatorSettings, capacity_bytes: int | None
) -> Replay:
    """Replay a program's allocations and frees.

    ``capacity_bytes``: what the device can give it; None: anything. Returns the peaks, and where
    the device ran out if it did. The replay ends there.

    Source:
        ``c10/cuda/CUDACachingAllocator.cpp``; see ``state.py``.
    """
    allocator = _allocator(settings, capacity_bytes, keep_changes=False)
    return _summary(requests, allocator, *_walk(requests, allocator, settings))


def least_reserved_bytes(requests: Requests, settings: AllocatorSettings) -> int:
    """Return the bytes that every replay on a card without end reserves at least, unreplayed.

    A pool's segments serve no other pool and stay until the cache is emptied: the peaks of blocks
    of every pool between two emptyings add up, whatever lies where (without garbage collection,
    which empties at other times). Source: ``c10/cuda/CUDACachingAllocator.cpp``, whose pools are by
    stream and by size; see ``state.py``.

    ``settings``: how the allocator behaves: of what changes nothing but sizes matter.
    """
    sizes = round_sizes(requests.num_bytes, settings.roundup_power2_divisions)
    events = requests.events
    row = np.where(events >= 0, events, ~events)
    changes = np.where(events >= 0, sizes[row], -sizes[row])
    pools = _pool_keys(sizes, requests.streams)[row]
    flushes = [] if requests.cache_flushes is None else requests.cache_flushes.tolist()
    ends = np.array([0, *flushes, len(events)])
    peaks = np.zeros(len(ends) - 1, dtype=np.int64)
    for pool in np.flatnonzero(np.bincount(pools)).tolist():
        own = np.flatnonzero(pools == pool)
        live, spans = np.cumsum(changes[own]), pairwise(np.searchsorted(own, ends).tolist())
        peaks += [live[max(0, start - 1) : stop].max(initial=0) for start, stop in spans]
    return int(peaks.max(initial=0))


def place(requests: Requests, *, settings: AllocatorSettings, capacity_bytes: int | None) -> Placed:
    """Replay and keep where every block lay and when segments came and went; see ``replay``."""
    allocator = _allocator(settings, capacity_bytes, keep_changes=True)
    blocks, num_events = _walk(requests, allocator, settings)
    sizes = _block_bytes(blocks)
    places = np.array([block & ADDRESS_MASK for block in blocks], dtype=np.int64)
    return Placed(
        replay=_summary(requests, allocator, blocks, num_events),
        addresses=np.where(sizes > 0, places, -1),
        block_bytes=sizes,
        changes=tuple(allocator.changes or ()),
        num_events=num_events,
    )


def _allocator(
    settings: AllocatorSettings, capacity_bytes: int | None, *, keep_changes: bool
) -> CachingAllocator:
    if settings.garbage_collection_threshold and settings.allowed_bytes is None:
        warnings.warn(
            "garbage_collection_threshold is ignored, as PyTorch ignores it, without a limit "
            "(torch.cuda.set_per_process_memory_fraction); set allowed_bytes",
            stacklevel=3,
        )
    return CachingAllocator(settings, capacity_bytes, keep_changes=keep_changes)


def _summary(
    tape: Requests, allocator: CachingAllocator, blocks: list[int], num_events: int
) -> Replay:
    """Read what an allocator says after a tape."""
    done, waited, block_bytes = tape.events[:num_events], allocator.waited, _block_bytes(blocks)
    return Replay(
        peak_allocated_bytes=_peak(_signed(done, block_bytes)),
        peak_requested_bytes=_peak(_held(done, tape.num_bytes, waited)),
        peak_active_bytes=_peak(_held(done, block_bytes, waited)),
        peak_reserved_bytes=allocator.peak_reserved_bytes,
        peak_inactive_split_bytes=allocator.peak_inactive_native_bytes,
        num_retries=allocator.num_retries,
        out_of_memory=_out_of_memory(allocator, tape, num_events),
        reserved_at_peak=tuple(
            PoolReserved(stream=stream, is_small=is_small, reserved_bytes=reserved_bytes)
            for (stream, is_small), reserved_bytes in sorted(
                allocator.reserved_at_peak.items(), key=lambda item: (item[0][0], not item[0][1])
            )
            if reserved_bytes
        ),
    )


def _block_bytes(blocks: list[int]) -> NDArray[np.int64]:
    return np.array([block >> ADDRESS_BITS for block in blocks], dtype=np.int64)


def _pool_keys(sizes: NDArray[np.int64], streams: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Number the pool of each row: those of a stream for small blocks and for others."""
    on_stream = np.zeros_like(sizes) if streams is None else streams.astype(np.int64)
    keys: NDArray[np.int64] = on_stream * 2 + (sizes > SMALL_BYTES)
    return keys


def pools_of(
    allocator: CachingAllocator, sizes: NDArray[np.int64], streams: NDArray[np.int64] | None
) -> list[Pool]:
    """Return the pool of each row."""
    keys = _pool_keys(sizes, streams)
    kinds = np.flatnonzero(np.bincount(keys)).tolist()
    table = {kind: allocator.pool(kind >> 1, is_small=not kind & 1) for kind in kinds}
    return [table[key] for key in keys.tolist()]


def _walk(
    tape: Requests, allocator: CachingAllocator, settings: AllocatorSettings
) -> tuple[list[int], int]:
    """Drive the allocator along the events, emptying its cache where the program did.

    Returns each row's block, and how many events it came through.
    """
    sizes = round_sizes(tape.num_bytes, settings.roundup_power2_divisions)
    step = _stepper(tape, sizes, allocator)
    num_events = len(tape.events)
    flushes = [] if tape.cache_flushes is None else tape.cache_flushes.tolist()
    for start, stop in pairwise([0, *flushes, num_events]):
        if start:
            allocator.now = start
            allocator.empty_cache()
        blocks, came_to = step(start, stop)
        if came_to < stop:
            return blocks, came_to
    return blocks, num_events


def _stepper(
    tape: Requests, sizes: NDArray[np.int64], allocator: CachingAllocator
) -> Callable[[int, int], tuple[list[int], int]]:
    """Return what drives the allocator from one event to another, with everything at hand."""
    sizes_bytes, segments = sizes.tolist(), segment_sizes(sizes).tolist()
    pools = pools_of(allocator, sizes, tape.streams)
    until = None if tape.in_use_until is None else tape.in_use_until.tolist()
    allocate, free, waiting = allocator.allocate, allocator.free, allocator.waiting
    blocks = [0] * len(sizes_bytes)

    def step(start: int, stop: int) -> tuple[list[int], int]:
        for event, row in enumerate(tape.events[start:stop].tolist(), start):
            if row < 0:
                row = ~row  # noqa: PLW2901 - the loop is hot
                block = blocks[row]
                if not block:
                    continue
                if until is not None and until[row] > event:
                    allocator.now = event
                    allocator.free_later(pools[row], block, row, until[row])
                else:
                    free(pools[row], block)
            elif size_bytes := sizes_bytes[row]:
                allocator.now = event
                if waiting:
                    allocator.complete(event)
                block = allocate(pools[row], size_bytes, segments[row])
                if not block:
                    return blocks, event
                blocks[row] = block
        return blocks, stop

    return step


def _out_of_memory(
    allocator: CachingAllocator, tape: Requests, num_events: int
) -> OutOfMemory | None:
    if num_events == len(tape.events):
        return None
    return OutOfMemory(
        event=num_events,
        requested_bytes=int(tape.num_bytes[tape.events[num_events]]),
        short_bytes=allocator.short_bytes,
        reserved_bytes=allocator.reserved_bytes,
    )


def _held(
    events: NDArray[np.int64], row_bytes: NDArray[np.int64], waited: dict[int, tuple[int, int]]
) -> NDArray[np.int64]:
    """Return the change of a byte count at each event, when waiting rows count until completed.

    ``waited``: for each row that waited: the event that freed it, and the one at which it was
    completed (past the last event: never). Allocations that happened at that event come after it.
    """
    held = _signed(events, row_bytes)
    for row, (freed, completed) in waited.items():
        held[freed] += row_bytes[row]
        if completed < len(events):
            held[completed] -= row_bytes[row]
    return held


def _signed(events: NDArray[np.int64], row_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    row = np.where(events >= 0, events, ~events)
    return np.where(events >= 0, 1, -1) * row_bytes[row]


def _peak(changes_bytes: NDArray[np.int64]) -> int:
    return int(np.cumsum(changes_bytes).max(initial=0))
