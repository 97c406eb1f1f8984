"""Every rule of the replay, shown on a program made by hand and compared with its slow twin."""

import random
import subprocess
import sys
from dataclasses import replace

import pytest

from brimful.allocator.config import parse_settings, spell_settings
from brimful.allocator.replay import OutOfMemory, PoolReserved
from brimful.units import GIB, KIB, MIB

from .allocator_programs import (
    EXPANDABLE,
    NATIVE,
    Program,
    drawn_program,
    drawn_settings,
    live_peak,
)


def test_it_needs_no_torch():
    code = "import sys, brimful.allocator.replay; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- native segments --


def test_nothing_costs_nothing():
    program = Program()
    program.give(program.take(0))
    result = program.replay()
    assert (result.peak_reserved_bytes, result.peak_allocated_bytes) == (0, 0)
    assert result.reserved_at_peak == ()


def test_no_events_at_all():
    assert Program().replay().peak_active_bytes == 0


def test_small_requests_share_two_mebibytes():
    # 2 MiB hold 16 blocks of 128 KiB, asked for with a byte less; the next opens a second segment.
    program = Program()
    program.take(*[128 * KIB - 1] * 16)
    result = program.replay()
    assert (result.peak_reserved_bytes, result.peak_allocated_bytes) == (2 * MIB, 2 * MIB)
    assert result.peak_requested_bytes == 2 * MIB - 16
    program.take(1)
    assert program.replay().peak_reserved_bytes == 4 * MIB


@pytest.mark.parametrize(
    ("num_bytes", "reserved_bytes"),
    [
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB - 511, 10 * MIB),  # rounded to 10 MiB: a segment of its own
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (GIB, GIB),
    ],
)
def test_what_the_first_request_reserves(num_bytes, reserved_bytes):
    program = Program()
    program.take(num_bytes)
    assert program.replay().peak_reserved_bytes == reserved_bytes


@pytest.mark.parametrize(
    ("num_bytes", "allocated_bytes", "split_bytes"),
    [
        # 18 MiB segments (10 MiB and more are rounded to 2 MiB). Left over 1 MiB: not split off,
        # allocated. 1 MiB + 512 B: split off, and inactive.
        (17 * MIB, 18 * MIB, 0),
        (17 * MIB - 512, 17 * MIB - 512, MIB + 512),
    ],
)
def test_a_large_remainder_of_up_to_one_mebibyte_is_not_split_off(
    num_bytes, allocated_bytes, split_bytes
):
    program = Program()
    program.take(num_bytes)
    result = program.replay()
    assert result.peak_reserved_bytes == 18 * MIB
    assert result.peak_allocated_bytes == result.peak_active_bytes == allocated_bytes
    assert result.peak_inactive_split_bytes == split_bytes
    assert result.peak_requested_bytes == num_bytes


def test_a_request_takes_the_smallest_block_that_fits():
    # Cached: 40, 30 and 50 MiB. 30 takes the 30, 40 the 40, 45 the 50 (5 left over). Nothing new.
    program = Program()
    program.give(program.take(40 * MIB), program.take(30 * MIB), program.take(50 * MIB))
    program.take(30 * MIB, 40 * MIB, 45 * MIB)
    result = program.replay()
    assert result.peak_reserved_bytes == 120 * MIB
    assert result.peak_inactive_split_bytes == 5 * MIB


def test_free_neighbours_merge():
    # Four times 5 MiB fill a 20 MiB segment. The two in the middle, free, serve one of 9 MiB; freed
    # one apart from the other they do not.
    for freed, reserved_bytes in (((1, 2), 20 * MIB), ((0, 2), 40 * MIB)):
        program = Program()
        program.take(*[5 * MIB] * 4)
        program.give(*freed)
        program.take(9 * MIB)
        assert program.replay().peak_reserved_bytes == reserved_bytes


def test_two_segments_never_merge():
    # 2 x 20 MiB free are not 40 MiB: the program of a growing batch, 20 + 20 + 40 reserved.
    program = Program()
    program.give(program.take(20 * MIB), program.take(20 * MIB))
    program.take(40 * MIB)
    assert program.replay().peak_reserved_bytes == 80 * MIB
    assert program.replay(EXPANDABLE).peak_reserved_bytes == 40 * MIB


def test_small_and_large_and_streams_do_not_share():
    # A free block of 20 MiB serves neither a small request nor another stream.
    program = Program()
    program.give(program.take(20 * MIB))
    program.take(KIB)
    program.take(20 * MIB, stream=7)
    result = program.replay()
    assert result.peak_reserved_bytes == (20 + 2 + 20) * MIB
    assert result.reserved_at_peak == (
        PoolReserved(stream=0, is_small=True, reserved_bytes=2 * MIB),
        PoolReserved(stream=0, is_small=False, reserved_bytes=20 * MIB),
        PoolReserved(stream=7, is_small=False, reserved_bytes=20 * MIB),
    )


# -- settings --


def test_sizes_are_rounded_to_divisions_of_a_power_of_two():
    # 84 MiB lies between 64 and 128; in eighths of 64 that is 88, in quarters 96.
    for parts, size_bytes in ((8, 88 * MIB), (4, 96 * MIB), (1, 84 * MIB)):
        program = Program()
        program.take(84 * MIB)
        result = program.replay(replace(NATIVE, roundup_power2_divisions=(parts,) * 16))
        assert result.peak_allocated_bytes == result.peak_reserved_bytes == size_bytes


def test_settings_are_spelled_so_that_they_are_read_back():
    assert spell_settings(NATIVE) == ""
    assert spell_settings(EXPANDABLE) == "expandable_segments:True"
    for seed in range(200):
        settings = drawn_settings(random.Random(seed), 2**30)  # noqa: S311 - no secret
        assert parse_settings(spell_settings(settings)) == replace(settings, allowed_bytes=None)


def test_blocks_from_max_split_size_on_stay_whole():
    # With 64 MiB: a free block of 100 does not serve 50 (below the limit: 50 more are reserved),
    # serves 90 whole (10 to spare), and not 79 (21 to spare, 20 are allowed: 80 more reserved).
    settings = replace(NATIVE, max_split_size_bytes=64 * MIB)
    for num_bytes, reserved_bytes, allocated_bytes in (
        (50 * MIB, 150 * MIB, 100 * MIB),
        (90 * MIB, 100 * MIB, 100 * MIB),
        (79 * MIB, 180 * MIB, 100 * MIB),
    ):
        program = Program()
        program.give(program.take(100 * MIB))
        program.take(num_bytes)
        result = program.replay(settings)
        assert result.peak_reserved_bytes == reserved_bytes
        assert result.peak_allocated_bytes == allocated_bytes
    assert program.replay().peak_reserved_bytes == 100 * MIB


def test_oversize_blocks_are_given_back_before_everything_is():
    # 100 and 70 free, 130 wanted, room for 200: both go back (the larger alone is not enough), and
    # the 30 that are free stay: no retry. Without the setting everything goes: one retry.
    program = Program()
    program.give(program.take(100 * MIB), program.take(70 * MIB), program.take(30 * MIB))
    program.take(130 * MIB)
    result = program.replay(replace(NATIVE, max_split_size_bytes=64 * MIB), 200 * MIB)
    assert (result.num_retries, result.out_of_memory) == (0, None)
    assert program.replay(NATIVE, 200 * MIB).num_retries == 1


def test_garbage_is_collected_oldest_first():
    # Each request is larger than all that is cached. Above 100 MiB held (half of 200) a new segment
    # first gives back those of at least average age, counted in large requests:
    #   50 | 50 + 60 = 110 | before 70: ages 2, 1, the 50 go; 60 + 70 = 130 | before 80: ages 2, 1,
    #   the 60 go; 70 + 80 = 150.
    # Without: 50, 110, 180, and 80 more pass the 200, so that everything goes: a retry.
    program = Program()
    for num_bytes in (50 * MIB, 60 * MIB, 70 * MIB):
        program.give(program.take(num_bytes))
    program.take(80 * MIB)
    limited = replace(NATIVE, allowed_bytes=200 * MIB)
    result = program.replay(replace(limited, garbage_collection_threshold=0.5))
    assert (result.peak_reserved_bytes, result.num_retries) == (150 * MIB, 0)
    result = program.replay(limited)
    assert (result.peak_reserved_bytes, result.num_retries) == (180 * MIB, 1)


def test_garbage_collection_without_a_limit_is_ignored_and_says_so():
    program = Program()
    program.take(50 * MIB)
    with pytest.warns(UserWarning, match="set allowed_bytes"):
        program.replay(replace(NATIVE, garbage_collection_threshold=0.5))


def test_the_limit_of_a_process_counts_whole_segments():
    # 3 MiB want a segment of 20: refused under a limit of 19 even where pages are mapped singly.
    program = Program()
    program.take(3 * MIB)
    for settings in (NATIVE, EXPANDABLE):
        result = program.replay(replace(settings, allowed_bytes=19 * MIB))
        assert result.out_of_memory == OutOfMemory(
            event=0, requested_bytes=3 * MIB, short_bytes=MIB, reserved_bytes=0
        )


# -- expandable segments --


def test_an_expandable_segment_grows_by_pages():
    # 30 MiB need two pages of 20; 35 more begin in what is left of them, 65 in all: four pages. A
    # small request has pages of 2 MiB of its own.
    program = Program()
    program.take(30 * MIB)
    assert program.replay(EXPANDABLE).peak_reserved_bytes == 40 * MIB
    program.take(35 * MIB)
    assert program.replay(EXPANDABLE).peak_reserved_bytes == 80 * MIB
    program.take(KIB)
    assert program.replay(EXPANDABLE).peak_reserved_bytes == 82 * MIB


def test_every_remainder_is_split_off_an_expandable_segment():
    # 19.5 MiB of a page of 20: the half is split off, where a native segment hands it out with the
    # rest. 1.5 MiB take it together with a new page. PyTorch counts none of it as inactive.
    program = Program()
    program.take(19 * MIB + MIB // 2)
    assert program.replay(EXPANDABLE).peak_allocated_bytes == 19 * MIB + MIB // 2
    assert program.replay(NATIVE).peak_allocated_bytes == 20 * MIB
    program.take(3 * MIB // 2)
    result = program.replay(EXPANDABLE)
    assert (result.peak_reserved_bytes, result.peak_inactive_split_bytes) == (40 * MIB, 0)


def test_the_growing_end_is_taken_last():
    # 10 | 12 | 10 MiB of two pages; the 12 are freed, 8 are over at the end. 8 MiB would fit the
    # end exactly, but it counts as endless: they go to the middle, and 4 after them. Then 8 fit
    # the end, and the two pages are full.
    program = Program()
    program.take(10 * MIB)
    middle = program.take(12 * MIB)
    program.take(10 * MIB)
    program.give(middle)
    program.take(8 * MIB, 4 * MIB, 8 * MIB)
    result = program.replay(EXPANDABLE)
    assert result.peak_reserved_bytes == result.peak_allocated_bytes == 40 * MIB
    # Had the first 8 gone to the end, 9 would still fit the middle: now they need a new page.
    program = Program()
    program.take(10 * MIB)
    middle = program.take(12 * MIB)
    program.take(10 * MIB)
    program.give(middle)
    program.take(8 * MIB, 9 * MIB)
    assert program.replay(EXPANDABLE).peak_reserved_bytes == 60 * MIB


def test_pages_go_back_from_the_middle_and_are_mapped_again():
    # 40 | 60 | 20 MiB, the 60 free, capacity 120; 30 on another stream. The flush unmaps the 60
    # (whole pages from 40 to 100), 40 are mapped for the other stream. Then 20 fill one page of the
    # gap: 60 + 40 + 20 = 120. One retry, and the capacity is never passed.
    program = Program()
    program.take(40 * MIB)
    middle = program.take(60 * MIB)
    program.take(20 * MIB)
    program.give(middle)
    program.take(30 * MIB, stream=1)
    program.take(20 * MIB)
    result = program.replay(EXPANDABLE, 120 * MIB)
    assert (result.peak_reserved_bytes, result.num_retries) == (120 * MIB, 1)
    assert result.out_of_memory is None
    program.take(20 * MIB)
    assert program.replay(EXPANDABLE, 120 * MIB).out_of_memory == OutOfMemory(
        event=6, requested_bytes=20 * MIB, short_bytes=20 * MIB, reserved_bytes=120 * MIB
    )


def test_partly_free_pages_stay_mapped():
    # 10 | 25 | 10 MiB of three pages. The free 25 lie from 10 to 35 MiB and the free end from 45 to
    # 60: no whole page (20 to 40, 40 to 60) is free, so that another stream gets none.
    program = Program()
    program.take(10 * MIB)
    middle = program.take(25 * MIB)
    program.take(10 * MIB)
    program.give(middle)
    program.take(20 * MIB, stream=1)
    result = program.replay(EXPANDABLE, 60 * MIB)
    assert result.out_of_memory.reserved_bytes == 60 * MIB
    assert result.out_of_memory.short_bytes == 20 * MIB


# -- at capacity --


def test_a_flush_that_helps_is_a_retry():
    # 60 cached, 70 wanted, room for 100: the 60 go back first. With room for 130 they stay.
    program = Program()
    program.give(program.take(60 * MIB))
    program.take(70 * MIB)
    result = program.replay(NATIVE, 100 * MIB)
    assert (result.num_retries, result.out_of_memory) == (1, None)
    assert result.peak_reserved_bytes == 70 * MIB
    assert program.replay(NATIVE, 130 * MIB).num_retries == 0


def test_out_of_memory_says_where_and_by_how_much():
    # 60 alive and 30 cached; 50.5 MiB need 52, but 60 + 52 is 12 more than 100.
    program = Program()
    program.take(60 * MIB)
    program.give(program.take(30 * MIB))
    program.take(50 * MIB + MIB // 2)
    program.take(GIB)
    result = program.replay(NATIVE, 100 * MIB)
    assert result.out_of_memory == OutOfMemory(
        event=3,
        requested_bytes=50 * MIB + MIB // 2,
        short_bytes=12 * MIB,
        reserved_bytes=60 * MIB,
    )
    assert result.num_retries == 1
    assert result.peak_allocated_bytes == 90 * MIB


def test_what_it_is_short_by_is_what_it_lacks():
    for seed in range(60):
        program = drawn_program(random.Random(seed))  # noqa: S311 - no secret
        capacity = int(0.8 * live_peak(program))
        failure = program.replay(NATIVE, capacity).out_of_memory
        if failure is None:
            continue
        program.events = program.events[: failure.event + 1]
        enough = capacity + failure.short_bytes
        assert program.replay(NATIVE, enough).out_of_memory is None
        break
    else:
        pytest.fail("no program ran out of memory")


# -- the program's own flushes --


def test_empty_cache_gives_back_what_no_block_is_in():
    # 20 alive, 60 and 30 cached. Flushed, 70 more make 90, below the 110 before; else 180.
    for flushed, reserved_bytes in ((True, 110 * MIB), (False, 180 * MIB)):
        program = Program()
        program.take(20 * MIB)
        program.give(program.take(60 * MIB), program.take(30 * MIB))
        if flushed:
            program.flush()
        program.take(70 * MIB)
        result = program.replay()
        assert (result.peak_reserved_bytes, result.num_retries) == (reserved_bytes, 0)


def test_empty_cache_waits_for_other_streams():
    program = Program()
    program.give(program.take(20 * MIB, until=1000))
    program.flush()
    program.take(40 * MIB)
    result = program.replay()
    assert result.peak_reserved_bytes == result.peak_active_bytes == 40 * MIB


# -- other streams --


def test_a_block_that_another_stream_uses_is_not_reused_until_then():
    # Freed at event 1, in use until event 3: the allocation at event 2 needs a new segment, the one
    # at event 3 takes it. Active counts it meanwhile, allocated does not.
    program = Program()
    program.give(program.take(20 * MIB, until=3))
    program.take(20 * MIB, 20 * MIB)
    result = program.replay()
    assert result.peak_reserved_bytes == result.peak_active_bytes == 40 * MIB
    assert result.peak_allocated_bytes == 40 * MIB
    program.until[0] = 4
    result = program.replay()
    assert result.peak_reserved_bytes == result.peak_active_bytes == 60 * MIB
    assert result.peak_requested_bytes == 60 * MIB
    assert result.peak_allocated_bytes == 40 * MIB


def test_a_flush_waits_for_other_streams():
    # Room for 50 only: the flush waits, so that the 20 come back and the 40 fit.
    program = Program()
    program.give(program.take(20 * MIB, until=1000))
    program.take(40 * MIB)
    result = program.replay(NATIVE, 50 * MIB)
    assert (result.num_retries, result.out_of_memory) == (1, None)
    assert result.peak_active_bytes == 40 * MIB
