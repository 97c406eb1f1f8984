"""The state of a CUDA caching allocator: its free blocks, its segments, what it has reserved.

Owns the rules by which a block is chosen, split, merged, mapped and given back. Knows nothing of
tapes: ``allocator.py`` feeds it.

A free block is a number, ``size << ADDRESS_BITS | address``, in the sorted list of its pool, so
that best fit by (size, address) is one bisection. Two dictionaries, by first and by last address,
find the free neighbours of a block; what is in neither is in use, not mapped, or not ours.

Source: ``c10/cuda/CUDACachingAllocator.cpp`` of PyTorch 2.10 to 2.13; the names of its functions
stand in the docstrings.
"""

from bisect import bisect_left, insort
from heapq import heappop, heappush

from brimful.allocator.config import (
    LARGE_SEGMENT_BYTES,
    MIN_BLOCK_BYTES,
    UNLIMITED_BYTES,
    AllocatorSettings,
)
from brimful.allocator.pool import (
    ADDRESS_BITS,
    ADDRESS_MASK,
    SPAN_BYTES,
    STILL_WAITING,
    Action,
    Change,
    Pool,
    Waiting,
)


class CachingAllocator:
    """Hands out blocks as PyTorch does, on a device of ``capacity_bytes``.

    A block is handed out as one number: its size and address, as in a pool's free list.

    Attributes:
        reserved_bytes: Held from the device now.
        peak_reserved_bytes: The most it ever held.
        reserved_at_peak: What each (stream, is_small) held then, in bytes.
        peak_inactive_split_bytes: The most bytes that lay free in segments partly in use; says
            nothing of expandable ones.
        num_retries: How often all cached segments were given back for want of memory.
        short_bytes: By how much the last request for device memory that failed was too large.
        now: The event being replayed.
        changes: What happened to device memory, in order; None: not kept.
        waiting: Freed blocks that other streams still use, a heap.
        waited: For each row that had to wait: when it was freed, and when it came back to its pool
            (``STILL_WAITING``: not yet), as events.
    """

    __slots__ = (
        "_allowed_bytes",
        "_capacity_bytes",
        "_collects",
        "_ends",
        "_gap_bytes",
        "_inactive_split_bytes",
        "_num_large_requests",
        "_pools",
        "_segments",
        "_settings",
        "_since",
        "_split_below_bytes",
        "_starts",
        "_top",
        "changes",
        "now",
        "num_retries",
        "peak_inactive_split_bytes",
        "peak_reserved_bytes",
        "reserved_at_peak",
        "reserved_bytes",
        "short_bytes",
        "waited",
        "waiting",
    )

    def __init__(
        self,
        settings: AllocatorSettings,
        capacity_bytes: int | None,
        *,
        keep_changes: bool = False,
    ) -> None:
        """Make an allocator that holds nothing.

        ``capacity_bytes``: what the device can give it; None: anything. ``keep_changes``: whether
        to keep ``changes``.
        """
        self.changes: list[Change] | None = [] if keep_changes else None
        self._settings = settings
        self._capacity_bytes = UNLIMITED_BYTES if capacity_bytes is None else capacity_bytes
        allowed = settings.allowed_bytes
        self._allowed_bytes = UNLIMITED_BYTES if allowed is None else allowed
        self._collects = allowed is not None and settings.garbage_collection_threshold > 0
        # should_split: only native blocks from max_split_size on are never split.
        expandable = settings.expandable_segments
        self._split_below_bytes = UNLIMITED_BYTES if expandable else settings.max_split_size_bytes
        self._pools: dict[tuple[int, bool], Pool] = {}
        self._starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._segments: dict[int, int] = {}
        self._gap_bytes: dict[int, int] = {}
        self._since: dict[int, int] = {}
        self._num_large_requests = self._inactive_split_bytes = self._top = 0
        self.waiting: list[Waiting] = []
        self.waited: dict[int, tuple[int, int]] = {}
        self.reserved_at_peak: dict[tuple[int, bool], int] = {}
        self.reserved_bytes = self.peak_reserved_bytes = self.peak_inactive_split_bytes = 0
        self.num_retries = self.short_bytes = self.now = 0

    @property
    def peak_inactive_native_bytes(self) -> int:
        """``peak_inactive_split_bytes`` as PyTorch counts it: 0 for expandable segments."""
        return 0 if self._settings.expandable_segments else self.peak_inactive_split_bytes

    def pool(self, stream: int, *, is_small: bool) -> Pool:
        """Return the pool of a stream, empty when it is first asked for."""
        pool = self._pools.get((stream, is_small))
        if pool is None:
            expandable = self._settings.expandable_segments
            pool = Pool(stream, is_small=is_small, expandable=expandable)
            self._pools[stream, is_small] = pool
            if expandable:
                self._add_span(pool, SPAN_BYTES)
        return pool

    # -- blocks --

    def allocate(self, pool: Pool, size_bytes: int, segment_bytes: int) -> int:
        """Hand out a block.

        ``segment_bytes``: what to ask the device for when no cached block will do. Returns the
        block, 0 when the device is out of memory. It may be larger than asked: a rest too small to
        be split off is allocated with it.

        Source:
            ``malloc``, ``get_free_block``, ``should_split`` and ``alloc_found_block``.
        """
        if self._collects and not pool.is_small:
            self._num_large_requests += 1
        free, starts = pool.free, self._starts
        place = bisect_left(free, size_bytes << ADDRESS_BITS)
        block = free[place] if place < len(free) else 0
        if block:
            have, address = block >> ADDRESS_BITS, block & ADDRESS_MASK
            if have >= self._settings.max_split_size_bytes or address + have in self._gap_bytes:
                place, block = self._choose(free, place, size_bytes)
        if block:
            del free[place]
        else:
            block = self._obtain(pool, size_bytes, segment_bytes)
            if not block:
                return 0
        have, address = block >> ADDRESS_BITS, block & ADDRESS_MASK
        del starts[address]
        if self._segments.get(address) != have:
            self._inactive_split_bytes -= have
        rest = have - size_bytes
        if rest < pool.least_rest_bytes or size_bytes >= self._split_below_bytes:
            del self._ends[address + have]
            return block
        starts[address + size_bytes] = self._ends[address + have] = rest
        insort(free, rest << ADDRESS_BITS | (address + size_bytes))
        self._inactive_split_bytes = split_bytes = self._inactive_split_bytes + rest
        if split_bytes > self.peak_inactive_split_bytes:  # noqa: PLR1730 - max() is slower
            self.peak_inactive_split_bytes = split_bytes
        return size_bytes << ADDRESS_BITS | address

    def free(self, pool: Pool, block: int) -> None:
        """Take a block back and merge it with its free neighbours.

        ``block``: what ``allocate`` returned.

        Source:
            ``free_block`` and ``try_merge_blocks``.
        """
        free, starts, ends = pool.free, self._starts, self._ends
        split_bytes = self._inactive_split_bytes
        address = block & ADDRESS_MASK
        end = address + (block >> ADDRESS_BITS)
        before = ends.pop(address, 0)
        if before:
            address -= before
            split_bytes -= before
            del free[bisect_left(free, before << ADDRESS_BITS | address)]
        after = starts.pop(end, 0)
        if after:
            del free[bisect_left(free, after << ADDRESS_BITS | end)]
            split_bytes -= after
            end += after
        size_bytes = end - address
        starts[address] = ends[end] = size_bytes
        insort(free, size_bytes << ADDRESS_BITS | address)
        if self._segments.get(address) != size_bytes:
            split_bytes += size_bytes
            if split_bytes > self.peak_inactive_split_bytes:  # noqa: PLR1730 - max() is slower
                self.peak_inactive_split_bytes = split_bytes
        elif self._collects:
            self._since[address] = self._num_large_requests
        self._inactive_split_bytes = split_bytes

    def free_later(self, pool: Pool, block: int, row: int, until_event: int) -> None:
        """Take a block back once other streams have done with it.

        Source:
            ``free`` and ``insert_events``, for a block that ``record_stream`` was called on.
        """
        self.waited[row] = (self.now, STILL_WAITING)
        heappush(self.waiting, Waiting(until_event, row, pool, block))

    def complete(self, until_event: float) -> None:
        """Release the waiting blocks that other streams have done with by then.

        Source:
            ``process_events``.
        """
        while self.waiting and self.waiting[0].until_event <= until_event:
            done = heappop(self.waiting)
            self.waited[done.row] = (self.waited[done.row][0], self.now)
            self._note("free_completed", done.pool, done.block, done.row)
            self.free(done.pool, done.block)

    def _choose(self, free: list[int], place: int, size_bytes: int) -> tuple[int, int]:
        """Best fit where blocks may still grow, or are too large to be split.

        A block that can grow into unmapped pages counts with what it could grow to, so that it is
        taken last; and blocks from max_split_size on only serve requests of about their size.
        """
        while place + 1 < len(free) and self._room(free[place + 1]) < self._room(free[place]):
            place += 1
        have = free[place] >> ADDRESS_BITS
        limit = self._settings.max_split_size_bytes
        if size_bytes < limit:
            fits = have < limit
        else:
            fits = have < size_bytes + self._settings.max_non_split_rounding_bytes
        return (place, free[place]) if fits else (place, 0)

    def _room(self, block: int) -> int:
        have = block >> ADDRESS_BITS
        return have + self._gap_bytes.get((block & ADDRESS_MASK) + have, 0)

    # -- device memory --

    def empty_cache(self) -> None:
        """Give back every segment or page that no block is in, waiting for other streams first.

        Source:
            ``release_cached_blocks`` and ``synchronize_and_free_events``.
        """
        self.complete(float("inf"))
        for pool in self._pools.values():
            for block in list(pool.free):
                if self._settings.expandable_segments:
                    self._unmap(pool, block)
                elif self._is_segment(block):
                    self._return_segment(pool, block)

    def _obtain(self, pool: Pool, size_bytes: int, segment_bytes: int) -> int:
        """Get a block from the device, giving cached ones back if need be; 0: out of memory.

        It is in no free list, but its ends are known as if it were.
        """
        if self._collects:
            self._collect_garbage()
        block = self._extend(pool, size_bytes, segment_bytes)
        if not block and self._return_oversize(pool, size_bytes):
            block = self._extend(pool, size_bytes, segment_bytes)
        if not block:
            self.empty_cache()
            self.num_retries += 1
            block = self._extend(pool, size_bytes, segment_bytes)
        return block

    def _extend(self, pool: Pool, size_bytes: int, segment_bytes: int) -> int:
        """Ask the device once (``alloc_block``)."""
        over_bytes = self.reserved_bytes + segment_bytes - self._allowed_bytes
        if over_bytes > 0:
            self.short_bytes = over_bytes
            return 0
        if self._settings.expandable_segments:
            return self._expand(pool, size_bytes)
        if not self._reserve(pool, segment_bytes):
            return 0
        # A hole between segments keeps neighbours from merging.
        address = self._top + MIN_BLOCK_BYTES
        self._top = address + segment_bytes
        self._segments[address] = segment_bytes
        self._starts[address] = self._ends[self._top] = segment_bytes
        block = segment_bytes << ADDRESS_BITS | address
        self._note("segment_alloc", pool, block)
        return block

    def _reserve(self, pool: Pool, num_bytes: int) -> bool:
        over_bytes = self.reserved_bytes + num_bytes - self._capacity_bytes
        if over_bytes > 0:
            self.short_bytes = over_bytes
            return False
        pool.reserved_bytes += num_bytes
        self.reserved_bytes += num_bytes
        if self.reserved_bytes > self.peak_reserved_bytes:
            self.peak_reserved_bytes = self.reserved_bytes
            self.reserved_at_peak = {key: pool.reserved_bytes for key, pool in self._pools.items()}
        return True

    def _note(self, action: Action, pool: Pool, block: int, row: int = -1) -> None:
        if self.changes is not None:
            address, num_bytes = block & ADDRESS_MASK, block >> ADDRESS_BITS
            self.changes.append(
                Change(self.now, action, address, num_bytes, pool.stream, pool.is_small, row)
            )

    def _is_segment(self, block: int) -> bool:
        return self._segments.get(block & ADDRESS_MASK) == block >> ADDRESS_BITS

    def _take(self, pool: Pool, block: int) -> None:
        """Drop a block from its free list."""
        del pool.free[bisect_left(pool.free, block)]

    def _forget(self, pool: Pool, block: int) -> None:
        """Drop a free block altogether."""
        self._take(pool, block)
        address = block & ADDRESS_MASK
        del self._starts[address], self._ends[address + (block >> ADDRESS_BITS)]

    def _return_segment(self, pool: Pool, block: int) -> None:
        """Give a whole cached segment back (``release_block``)."""
        self._forget(pool, block)
        self._note("segment_free", pool, block)
        num_bytes = self._segments.pop(block & ADDRESS_MASK)
        pool.reserved_bytes -= num_bytes
        self.reserved_bytes -= num_bytes

    def _return_oversize(self, pool: Pool, size_bytes: int) -> bool:
        """Give back cached blocks that max_split_size keeps whole, until the request would fit.

        The smallest one that is large enough by itself, or else the largest ones. What was given
        back stays so even when it was not enough (``release_available_cached_blocks``).
        """
        limit = self._split_below_bytes
        if limit == UNLIMITED_BYTES:
            return False
        free, need_bytes, returned_bytes = pool.free, max(size_bytes, limit), 0
        place = bisect_left(free, need_bytes << ADDRESS_BITS)
        if place < len(free):
            self._return_segment(pool, free[place])
            return True
        while free and returned_bytes < need_bytes and free[-1] >> ADDRESS_BITS >= limit:
            returned_bytes += free[-1] >> ADDRESS_BITS
            self._return_segment(pool, free[-1])
        return returned_bytes >= need_bytes

    def _collect_garbage(self) -> None:
        """Give back the large segments that lay unused longest (``garbage_collect_cached_blocks``).

        Age counts the large requests since a segment became free. Each round gives back all that
        are at least of average age.
        """
        settings = self._settings
        target_bytes = self.reserved_bytes - int(
            settings.garbage_collection_threshold * self._allowed_bytes
        )
        cached = [
            (self._num_large_requests - self._since[block & ADDRESS_MASK], block, pool)
            for pool in self._pools.values()
            if not pool.is_small
            for block in pool.free
            if self._is_segment(block)
        ]
        while target_bytes > 0 and cached:
            average = sum(age for age, _, _ in cached) / len(cached)
            for age, block, pool in cached:
                if age >= average:
                    target_bytes -= block >> ADDRESS_BITS
                    self._return_segment(pool, block)
            cached = [entry for entry in cached if entry[0] < average]

    # -- pages of an expandable segment --

    def _expand(self, pool: Pool, size_bytes: int) -> int:
        """Map pages where the lowest address has room for the request.

        Source:
            ``try_allocate_expandable_block`` and ``find_expandable_block``. As there, pages mapped
            before the device ran out stay mapped.
        """
        starts = (gap - self._ends.get(gap, 0) for gap in pool.gaps)
        address = next((start for start in starts if self._has_room(start, size_bytes)), None)
        if address is None:
            address = self._add_span(pool, -(-size_bytes // SPAN_BYTES) * SPAN_BYTES)
        have = self._starts.get(address, 0)
        while have < size_bytes:
            gap = address + have
            if not self._map(pool, gap, min(size_bytes - have, self._gap_bytes[gap])):
                return 0
            have = self._starts[address]
        block = have << ADDRESS_BITS | address
        self._take(pool, block)
        return block

    def _add_span(self, pool: Pool, num_bytes: int) -> int:
        """Give a pool one more range of addresses, and return the first of them."""
        address = self._top
        self._add_gap(pool, address, num_bytes)
        self._top += num_bytes + LARGE_SEGMENT_BYTES  # a hole, as between segments
        return address

    def _has_room(self, address: int, size_bytes: int) -> bool:
        """Tell whether free or unmapped ranges follow each other from here for long enough."""
        end = address + size_bytes
        while address < end:
            step = self._starts.get(address) or self._gap_bytes.get(address)
            if step is None:
                return False
            address += step
        return True

    def _map(self, pool: Pool, address: int, size_bytes: int) -> bool:
        """Map whole pages at the beginning of a gap (``map_block``)."""
        num_bytes = -(-size_bytes // pool.page_bytes) * pool.page_bytes
        if not self._reserve(pool, num_bytes):
            return False
        gap_bytes = self._remove_gap(pool, address)
        if gap_bytes > num_bytes:
            self._add_gap(pool, address + num_bytes, gap_bytes - num_bytes)
        self._note("segment_map", pool, num_bytes << ADDRESS_BITS | address)
        self.free(pool, num_bytes << ADDRESS_BITS | address)
        return True

    def _unmap(self, pool: Pool, block: int) -> None:
        """Give back the whole pages inside a free block (``unmap_block``)."""
        page_bytes, address = pool.page_bytes, block & ADDRESS_MASK
        end = address + (block >> ADDRESS_BITS)
        first = -(-address // page_bytes) * page_bytes
        last = end // page_bytes * page_bytes
        if first >= last:
            return
        self._forget(pool, block)
        for start, stop in ((address, first), (last, end)):
            if start < stop:
                self._starts[start] = self._ends[stop] = stop - start
                insort(pool.free, (stop - start) << ADDRESS_BITS | start)
        self._add_gap(pool, first, last - first)
        self._note("segment_unmap", pool, (last - first) << ADDRESS_BITS | first)
        pool.reserved_bytes -= last - first
        self.reserved_bytes -= last - first

    def _add_gap(self, pool: Pool, address: int, num_bytes: int) -> None:
        """Note an unmapped range and merge it with the unmapped ranges beside it."""
        if address + num_bytes in self._gap_bytes:
            num_bytes += self._remove_gap(pool, address + num_bytes)
        place = bisect_left(pool.gaps, address)
        if place and pool.gaps[place - 1] + self._gap_bytes[pool.gaps[place - 1]] == address:
            self._gap_bytes[pool.gaps[place - 1]] += num_bytes
            return
        pool.gaps.insert(place, address)
        self._gap_bytes[address] = num_bytes

    def _remove_gap(self, pool: Pool, address: int) -> int:
        del pool.gaps[bisect_left(pool.gaps, address)]
        return self._gap_bytes.pop(address)
