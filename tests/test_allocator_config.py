"""Allocator settings are read as PyTorch reads them, and refused in one sentence."""

from dataclasses import replace

import numpy as np
import pytest
from tests.pretend.slow_allocator import round_size, segment_size

from brimful.allocator.config import (
    PYTORCH_DEFAULTS,
    UNLIMITED_BYTES,
    parse_settings,
    round_sizes,
    segment_sizes,
)
from brimful.errors import InputError, UnknownNameError
from brimful.units import GIB, MIB

GOOD = (
    "",
    "expandable_segments:True,max_split_size_mb:128",
    " expandable_segments : False , backend:native ",
    "max_split_size_mb:20",
    "max_non_split_rounding_mb:30",
    "garbage_collection_threshold:0.8,pinned_use_background_threads:True",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]",
    "roundup_power2_divisions:[256:0,>:16]",
)
BAD = {
    "max_split_size_mb:19": "20 or more",
    "max_split_size_mb:many": "whole number",
    "max_non_split_rounding_mb:10": "20 or more",
    "garbage_collection_threshold:1.5": "between 0 and 1",
    "garbage_collection_threshold:0": "between 0 and 1",
    "roundup_power2_divisions:3": "power of two",
    "roundup_power2_divisions:[3:8]": "power of two",
    "roundup_power2_divisions:[64:3]": "power of two",
    "expandable_segments:true": "True or False",
    "max_split_size_mb": "key:value",
}


def test_the_defaults_are_those_of_pytorch():
    settings = parse_settings("")
    assert settings == PYTORCH_DEFAULTS
    assert not settings.expandable_segments
    assert settings.max_split_size_bytes == UNLIMITED_BYTES
    assert settings.max_non_split_rounding_bytes == 20 * MIB


def test_settings_are_read():
    settings = parse_settings("expandable_segments:True,max_split_size_mb:128")
    assert settings == replace(
        PYTORCH_DEFAULTS, expandable_segments=True, max_split_size_bytes=128 * MIB
    )
    settings = parse_settings("garbage_collection_threshold:0.8,max_non_split_rounding_mb:30")
    assert settings.garbage_collection_threshold == 0.8
    assert settings.max_non_split_rounding_bytes == 30 * MIB


def test_divisions_hold_for_intervals_of_sizes():
    # The expectations of PyTorch's own test, c10/test/core/AllocatorConfig_test.cpp: sizes below
    # the first boundary are divided as those at it, and ">" stands for all above the last.
    settings = parse_settings("roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]")
    assert settings.roundup_power2_divisions == (8,) * 7 + (2, 4, 2, 4) + (1,) * 5
    settings = parse_settings("roundup_power2_divisions:4")
    assert settings.roundup_power2_divisions == (4,) * 16


@pytest.mark.parametrize(("text", "message"), BAD.items())
def test_bad_values_say_what_to_write(text, message):
    with pytest.raises(InputError, match=message):
        parse_settings(text)


@pytest.mark.parametrize(
    "text",
    ["backend:cudaMallocAsync", "large_segment_size_mb:30", "per_process_memory_fraction:0.5"],
)
def test_what_the_replay_does_not_follow_is_refused(text):
    with pytest.raises(InputError, match="does not follow"):
        parse_settings(text)


def test_an_unknown_key_is_refused_with_the_nearest_one():
    with pytest.raises(UnknownNameError, match="expandable_segments"):
        parse_settings("expandable_segment:True")


@pytest.mark.torch
def test_torch_accepts_and_refuses_the_same():
    import torch

    # The parser that CUDA builds use, there in CPU builds too; it reports all as one of these.
    try:
        for text in GOOD:
            parse_settings(text)
            torch._C._accelerator_setAllocatorSettings(text)
        for text in BAD:
            with pytest.raises((ValueError, RuntimeError)):
                torch._C._accelerator_setAllocatorSettings(text)
    finally:
        torch._C._accelerator_setAllocatorSettings("expandable_segments:False")


@pytest.mark.parametrize(
    ("num_bytes", "parts", "size_bytes"),
    [
        (1, 0, 512),
        (513, 0, 1024),
        (MIB, 0, MIB),
        (MIB + 1, 0, MIB + 512),
        (84 * MIB, 8, 88 * MIB),  # between 64 and 128 MiB, steps of 8
        (400 * MIB, 2, 512 * MIB),  # between 256 and 512, steps of 128: 384, 512
        (64 * MIB, 8, 64 * MIB),
        (2048, 4, 2048),  # not above 512 x 4: rounded as without divisions
        (2049, 4, 2560),
    ],
)
def test_sizes_are_rounded(num_bytes, parts, size_bytes):
    assert round_sizes(np.array([num_bytes]), (parts,) * 16).tolist() == [size_bytes]


def test_rounding_equals_the_slow_one_around_every_power_of_two():
    edges = [(1 << k) + d for k in range(1, 37) for d in (-513, -512, -1, 0, 1, 511, 512, 513)]
    sizes = [size for size in edges if size > 0] + list(range(3 * MIB // 2, 2 * GIB, 99_999_989))
    for divisions in ((0,) * 16, (2,) * 16, (8, 4, 2, 1, 0, 16, 8, 4, 2, 1, 0, 32, 8, 4, 2, 2)):
        fast = round_sizes(np.array(sizes), divisions)
        assert fast.tolist() == [round_size(size, divisions) for size in sizes]
        assert segment_sizes(fast).tolist() == [segment_size(size) for size in fast.tolist()]
