"""On programs drawn at random the replay equals its slow twin, and blocks lie where they may."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.pretend.slow_allocator import round_size, segment_size

from brimful.allocator.held import Held, held_of
from brimful.allocator.pool import ADDRESS_BITS
from brimful.allocator.replay import least_reserved_bytes, place, replay
from brimful.allocator.state import CachingAllocator
from brimful.units import MIB

from .allocator_programs import EXPANDABLE, NATIVE, drawn_program, drawn_settings, live_peak
from .recordings import long_run

# -- the slow allocator is the specification --


@pytest.mark.few(2)
@pytest.mark.parametrize("group", range(8))
def test_every_statistic_equals_that_of_the_slow_allocator(group):
    happened = dict.fromkeys(
        ("retry", "out of memory", "flush helped", "collected", "oversize", "unmapped", "waited"), 0
    )
    happened["emptied"] = 0
    for seed in range(100 * group, 100 * (group + 1)):
        rng = random.Random(seed)  # noqa: S311 - no secret
        program = drawn_program(rng)
        peak = live_peak(program)
        capacity = None if rng.random() < 0.35 else int(peak * rng.uniform(0.7, 1.6)) + 2 * MIB
        settings = drawn_settings(rng, peak)
        result = program.replay(settings, capacity)
        assert_held(program, settings, capacity, result)
        happened["emptied"] += len(program.flushes) > 0
        happened["retry"] += result.num_retries > 0
        happened["out of memory"] += result.out_of_memory is not None
        happened["flush helped"] += result.num_retries > (result.out_of_memory is not None)
        for name in program.slow.happened:
            happened[name] += 1
    # A comparison is worth what it meets: every rare path in at least five of a hundred programs.
    assert min(happened.values()) >= 5, happened


def assert_held(program, settings, capacity, result):
    """What is held alone is that of the whole replay; with and without blocks that wait."""
    short = result.out_of_memory.short_bytes if result.out_of_memory else 0
    requests = program.requests()
    held = held_of(requests, settings=settings, capacity_bytes=capacity)
    assert held == Held(result.peak_reserved_bytes, result.num_retries, short)
    at_once = replace(requests, in_use_until=None)
    whole = replay(at_once, settings=settings, capacity_bytes=capacity)
    short = whole.out_of_memory.short_bytes if whole.out_of_memory else 0
    held = held_of(at_once, settings=settings, capacity_bytes=capacity)
    assert held == Held(whole.peak_reserved_bytes, whole.num_retries, short)


@pytest.mark.parametrize("settings", [NATIVE, EXPANDABLE], ids=["native", "expandable"])
def test_peaks_are_ordered_and_blocks_never_overlap(settings):
    for seed in range(40):
        rng = random.Random(seed)  # noqa: S311 - no secret
        program = drawn_program(rng)
        program.until = [0] * len(program.until)
        result = program.replay(settings)
        assert (
            result.peak_reserved_bytes
            >= result.peak_active_bytes
            >= result.peak_allocated_bytes
            >= result.peak_requested_bytes
            == live_peak(program)
        )
        drive(program, settings)


@pytest.mark.few(1)
@pytest.mark.parametrize("settings", [NATIVE, EXPANDABLE], ids=["native", "expandable"])
def test_a_replay_reserves_no_less_than_its_pools_peak(settings):
    num_near = 0
    for seed in range(100):
        program = drawn_program(random.Random(seed))  # noqa: S311 - no secret
        least = least_reserved_bytes(program.requests(), settings)
        reserved = program.replay(settings).peak_reserved_bytes
        assert live_peak(program) <= least <= reserved
        num_near += least > reserved / 2
    assert num_near > 10


def drive(program, settings):
    """Replay by hand, looking at every block; at the end free everything and empty the cache."""
    allocator = CachingAllocator(settings, None)
    alive = {}
    for event in program.events:
        if event < 0 and program.num_bytes[~event]:
            allocator.free(*alive.pop(~event))
        elif event >= 0 and program.num_bytes[event]:
            size = round_size(program.num_bytes[event], settings.roundup_power2_divisions)
            pool = allocator.pool(program.streams[event], is_small=size <= MIB)
            alive[event] = pool, allocator.allocate(pool, size, segment_size(size))
            assert alive[event][1] >> ADDRESS_BITS >= size
        ranges = sorted(
            (block & (1 << ADDRESS_BITS) - 1, block >> ADDRESS_BITS) for _, block in alive.values()
        )
        assert all(a + n <= b for (a, n), (b, _) in pairwise(ranges))
        assert allocator.reserved_bytes >= sum(size for _, size in ranges)
    for pool, block in alive.values():
        allocator.free(pool, block)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0
    assert allocator.pool(0, is_small=True).free == []


# -- where blocks lie --


def mapped_after(mapped, change):
    """Follow what is mapped, as ranges that do not overlap: first address to last and stream."""
    first, last = change.address, change.address + change.num_bytes
    if change.action in {"segment_alloc", "segment_map"}:
        assert all(end <= first or start >= last for start, (end, _) in mapped.items())
        mapped[first] = last, change.stream
    elif change.action in {"segment_free", "segment_unmap"}:
        covered = 0
        for start, (end, stream) in list(mapped.items()):
            if start < last and end > first:
                assert stream == change.stream
                covered += min(end, last) - max(start, first)
                del mapped[start]
                mapped |= {a: (b, stream) for a, b in ((start, first), (last, end)) if a < b}
        assert covered == last - first


def check_places(program, settings, capacity):
    """Walk through a replay: no two blocks overlap, and every block is mapped, on its stream."""
    recording = program.recording()
    placed = place(recording.requests(), settings=settings, capacity_bytes=capacity)
    mapped, used, changes, most = {}, {}, list(placed.changes), 0
    for event in range(placed.num_events + 1):
        while changes and changes[0].event == event:
            change = changes.pop(0)
            if change.action == "free_completed":
                assert used.pop(change.row) == change.address
            mapped_after(mapped, change)
            most = max(most, sum(end - start for start, (end, _) in mapped.items()))
        signed = program.events[event] if event < placed.num_events else 0
        row = signed if signed >= 0 else ~signed
        if event == placed.num_events or placed.addresses[row] < 0:
            continue
        if signed < 0 and program.until[row] <= event:
            del used[row]
        elif signed >= 0:
            used[row] = placed.addresses[row]
            check_block(row, placed, program, mapped, used)
    assert not changes
    assert most == placed.replay.peak_reserved_bytes
    assert capacity is None or most <= capacity
    return placed


def check_block(row, placed, program, mapped, used):
    first, last = placed.addresses[row], placed.addresses[row] + placed.block_bytes[row]
    here = first
    while here < last:  # pages that were mapped one after the other
        start, (end, stream) = max((s, e) for s, e in mapped.items() if s <= here)
        assert here < end, "not mapped"
        assert stream == program.streams[row]
        here = end
    assert start <= last
    for other in used:
        start = placed.addresses[other]
        assert other == row or start >= last or start + placed.block_bytes[other] <= first


def test_every_block_lies_where_memory_is_mapped_and_nothing_else_is():
    kinds = set()
    for seed in range(120):
        rng = random.Random(seed)  # noqa: S311 - no secret
        program = drawn_program(rng)
        peak = live_peak(program)
        settings = drawn_settings(rng, peak)
        capacity = None if rng.random() < 0.35 else int(peak * rng.uniform(0.7, 1.6)) + 2 * MIB
        placed = check_places(program, settings, capacity)
        kinds.update(change.action for change in placed.changes)
        assert placed.replay == program.replay(settings, capacity)
        without_places = replay(
            program.recording().requests(), settings=settings, capacity_bytes=capacity
        )
        assert placed.replay == without_places
    assert kinds == {
        "segment_alloc",
        "segment_free",
        "segment_map",
        "segment_unmap",
        "free_completed",
    }


def test_addresses_stay_where_javascript_can_count():
    placed = place(long_run(20_000).requests(), settings=EXPANDABLE, capacity_bytes=None)
    assert placed.addresses.max() < 2**53 // 16
