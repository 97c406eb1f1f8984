"""The replay of a tape through PyTorch's CUDA caching allocator: what a program reserves.

Owns the walk over a tape's events and what it says; the rules are in ``allocator_state.py``. Knows
nothing of who allocated what, and needs no torch.

What real runs do beside it: memory that never passes the allocator (context, NCCL, graphs' private
pools) is the caller's to take off the capacity; addresses of ``cudaMalloc`` are assumed to rise;
``cudaMalloc`` is assumed to fail only for want of bytes.
"""

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brimful.pretend.allocator_config import (
    SMALL_BYTES,
    AllocatorSettings,
    round_sizes,
    segment_sizes,
)
from brimful.pretend.allocator_state import ADDRESS_BITS, CachingAllocator, Pool


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


def replay(  # noqa: PLR0913 - the columns of one tape
    events: NDArray[np.int64],
    num_bytes: NDArray[np.int64],
    *,
    streams: NDArray[np.int64] | None = None,
    in_use_until: NDArray[np.int64] | None = None,
    settings: AllocatorSettings,
    capacity_bytes: int | None,
) -> Replay:
    """Replay a tape's allocations and frees.

    Args:
        events: Signed order of events: ``i`` allocates row i, ``~i`` frees it.
        num_bytes: Requested size of each row; rows of 0 bytes take no block.
        streams: Stream on which each row is allocated; None: all on stream 0.
        in_use_until: Event from which other streams have done with each row (``record_stream``).
            A row freed before that is free at the first allocation from then on, or when the
            allocator waits for all streams to empty its cache. None: no other stream uses any.
        settings: How the allocator behaves.
        capacity_bytes: What the device can give it; None: anything.

    Returns:
        The peaks, and where the device ran out if it did. The replay ends there.

    Source:
        ``c10/cuda/CUDACachingAllocator.cpp``; see ``allocator_state.py``.
    """
    if settings.garbage_collection_threshold and settings.allowed_bytes is None:
        warnings.warn(
            "garbage_collection_threshold is ignored, as PyTorch ignores it, without a limit "
            "(torch.cuda.set_per_process_memory_fraction); set allowed_bytes",
            stacklevel=2,
        )
    allocator = CachingAllocator(settings, capacity_bytes)
    sizes = round_sizes(num_bytes, settings.roundup_power2_divisions)
    pools = _pools(allocator, sizes, streams)
    until = None if in_use_until is None else in_use_until.tolist()
    blocks, num_events = _walk(events, sizes, pools, allocator, until)
    done, waited = events[:num_events], allocator.waited
    expandable = settings.expandable_segments
    return Replay(
        peak_allocated_bytes=_peak(_signed(done, blocks)),
        peak_requested_bytes=_peak(_held(done, num_bytes, waited)),
        peak_active_bytes=_peak(_held(done, blocks, waited)),
        peak_reserved_bytes=allocator.peak_reserved_bytes,
        peak_inactive_split_bytes=0 if expandable else allocator.peak_inactive_split_bytes,
        num_retries=allocator.num_retries,
        out_of_memory=_out_of_memory(allocator, events, num_bytes, num_events),
        reserved_at_peak=tuple(
            PoolReserved(stream=stream, is_small=is_small, reserved_bytes=reserved_bytes)
            for (stream, is_small), reserved_bytes in sorted(
                allocator.reserved_at_peak.items(), key=lambda item: (item[0][0], not item[0][1])
            )
            if reserved_bytes
        ),
    )


def _pools(
    allocator: CachingAllocator, sizes: NDArray[np.int64], streams: NDArray[np.int64] | None
) -> list[Pool]:
    """Return the pool of each row."""
    on_stream = np.zeros_like(sizes) if streams is None else streams.astype(np.int64)
    kinds, rows = np.unique(on_stream * 2 + (sizes > SMALL_BYTES), return_inverse=True)
    table = [allocator.pool(kind >> 1, is_small=not kind & 1) for kind in kinds.tolist()]
    return [table[kind] for kind in rows.tolist()]


def _walk(
    events: NDArray[np.int64],
    sizes: NDArray[np.int64],
    pools: list[Pool],
    allocator: CachingAllocator,
    until: list[int] | None,
) -> tuple[NDArray[np.int64], int]:
    """Drive the allocator along the events.

    Returns:
        The bytes of each row's block, and how many events it came through.
    """
    sizes_bytes, segments = sizes.tolist(), segment_sizes(sizes).tolist()
    allocate, free, waiting = allocator.allocate, allocator.free, allocator.waiting
    blocks = [0] * len(sizes_bytes)
    num_events = len(events)
    for event, row in enumerate(events.tolist()):
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
            if waiting:
                allocator.now = event
                allocator.complete(event)
            block = allocate(pools[row], size_bytes, segments[row])
            if not block:
                num_events = event
                break
            blocks[row] = block
    block_bytes = [block >> ADDRESS_BITS for block in blocks]
    return np.array(block_bytes, dtype=np.int64), num_events


def _out_of_memory(
    allocator: CachingAllocator,
    events: NDArray[np.int64],
    num_bytes: NDArray[np.int64],
    num_events: int,
) -> OutOfMemory | None:
    if num_events == len(events):
        return None
    return OutOfMemory(
        event=num_events,
        requested_bytes=int(num_bytes[events[num_events]]),
        short_bytes=allocator.short_bytes,
        reserved_bytes=allocator.reserved_bytes,
    )


def _held(
    events: NDArray[np.int64], row_bytes: NDArray[np.int64], waited: dict[int, tuple[int, int]]
) -> NDArray[np.int64]:
    """Return the change of a byte count at each event, when waiting rows count until completed.

    Args:
        events: The events that were replayed.
        row_bytes: What each row counts for.
        waited: For each row that waited: the event that freed it, and the one at which it was
            completed (past the last event: never). Allocations that happened at that event come
            after it.
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
