"""What a program comes to hold of a device, and no other statistic: the fast path of ``replay.py``.

A search replays dozens of strategies and asks of each only what it reserves. Here the two cases
that nearly all events are, a block that is freed and a request that a cached block serves, stand in
one loop without calls, and what lies free inside segments is not counted. All else is the
allocator's own. A test holds it to ``replay`` on programs drawn at random.
"""

from bisect import bisect_left, insort
from itertools import pairwise
from typing import NamedTuple

from brimful.allocator.config import AllocatorSettings, round_sizes, segment_sizes
from brimful.allocator.pool import ADDRESS_BITS, ADDRESS_MASK
from brimful.allocator.replay import Requests, pools_of, replay
from brimful.allocator.state import CachingAllocator


class Held(NamedTuple):
    """What a replay comes to, as ``Replay`` has it.

    Attributes:
        peak_reserved_bytes: Held from the device at most.
        num_retries: Requests for which everything cached was given back.
        short_bytes: How much more the device would have had to give; 0: it completed.
    """

    peak_reserved_bytes: int
    num_retries: int
    short_bytes: int


def held_of(requests: Requests, *, settings: AllocatorSettings, capacity_bytes: int | None) -> Held:
    """Replay a program; see ``replay``.

    ``capacity_bytes``: what the device can give it; None: anything.
    """
    if requests.in_use_until is not None or settings.garbage_collection_threshold:
        done = replay(requests, settings=settings, capacity_bytes=capacity_bytes)
        short = done.out_of_memory.short_bytes if done.out_of_memory else 0
        return Held(done.peak_reserved_bytes, done.num_retries, short)
    holding = _Holding(settings, capacity_bytes)
    is_done = holding.follow(requests, settings)
    short = 0 if is_done else holding.short_bytes
    return Held(holding.peak_reserved_bytes, holding.num_retries, short)


def held_within(
    requests: Requests, *, settings: AllocatorSettings, capacity_bytes: int
) -> tuple[Held, Held]:
    """Replay a program on a card without end, and on one of this size."""
    free = held_of(requests, settings=settings, capacity_bytes=None)
    # What is never refused anything does the same with a limit as without.
    if free.peak_reserved_bytes <= capacity_bytes and not settings.garbage_collection_threshold:
        return free, free
    return free, held_of(requests, settings=settings, capacity_bytes=capacity_bytes)


class _Holding(CachingAllocator):
    """An allocator that walks along a tape by itself."""

    def follow(  # noqa: C901, PLR0912, PLR0915 - calls would be half of its time
        self, requests: Requests, settings: AllocatorSettings
    ) -> bool:
        """Hand out and take back along all events; whether the device had enough for them."""
        sizes = round_sizes(requests.num_bytes, settings.roundup_power2_divisions)
        asked, segments = sizes.tolist(), segment_sizes(sizes).tolist()
        pools = pools_of(self, sizes, requests.streams)
        cached, whole_from = [pool.free for pool in pools], settings.max_split_size_bytes
        addresses, lengths = [0] * len(asked), [0] * len(asked)
        starts, ends, gaps = self._starts, self._ends, self._gap_bytes
        flushes = [] if requests.cache_flushes is None else requests.cache_flushes.tolist()
        for start, stop in pairwise([0, *flushes, len(requests.events)]):
            if start:
                self.empty_cache()
            for row in requests.events[start:stop].tolist():
                if row < 0:
                    row = ~row  # noqa: PLW2901 - the loop is hot
                    if not (length := lengths[row]):
                        continue
                    free, address = cached[row], addresses[row]
                    end = address + length
                    if before := ends.pop(address, 0):
                        address -= before
                        del free[bisect_left(free, before << ADDRESS_BITS | address)]
                    if after := starts.pop(end, 0):
                        del free[bisect_left(free, after << ADDRESS_BITS | end)]
                        end += after
                    starts[address] = ends[end] = length = end - address
                    insort(free, length << ADDRESS_BITS | address)
                elif size := asked[row]:
                    free = cached[row]
                    place = bisect_left(free, size << ADDRESS_BITS)
                    block = free[place] if place < len(free) else 0
                    have, address = block >> ADDRESS_BITS, block & ADDRESS_MASK
                    if gap := gaps.get(address + have):  # it may grow: the next is taken first
                        other = free[place + 1] if place + 1 < len(free) else block
                        length, first = other >> ADDRESS_BITS, other & ADDRESS_MASK
                        if other != block and first + length in gaps:
                            block = 0
                        elif length < have + gap:
                            place += other != block
                            have, address = length, first
                    if not block or have >= whole_from:
                        block = self.allocate(pools[row], size, segments[row])
                        if not block:
                            return False
                        addresses[row] = block & ADDRESS_MASK
                        lengths[row] = block >> ADDRESS_BITS
                        continue
                    del free[place], starts[address]
                    addresses[row] = address
                    rest = have - size
                    if rest < pools[row].least_rest_bytes or size >= self._split_below_bytes:
                        del ends[address + have]
                        lengths[row] = have
                        continue
                    lengths[row] = size
                    starts[address + size] = ends[address + have] = rest
                    insort(free, rest << ADDRESS_BITS | (address + size))
        return True
