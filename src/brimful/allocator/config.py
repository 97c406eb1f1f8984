"""Settings of PyTorch's CUDA caching allocator, as ``PYTORCH_CUDA_ALLOC_CONF`` spells them.

Owns the constants, the settings and how they are read. Knows nothing of blocks or pools.

Source: ``c10/core/AllocatorConfig.h``, ``c10/core/AllocatorConfig.cpp`` and
``c10/cuda/CUDAAllocatorConfig.h`` of PyTorch 2.13.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from brimful.errors import InputError, unknown_name
from brimful.units import MIB

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Where PyTorch looks for the settings, the newer name first."""
MIN_BLOCK_BYTES = 512
"""Every request is rounded to a multiple of it (``kMinBlockSize``)."""
SMALL_BYTES = MIB
"""The largest request of a small pool (``kSmallSize``)."""
SMALL_SEGMENT_BYTES = 2 * MIB
"""What a small pool asks the driver for (``kSmallBuffer``)."""
LARGE_SEGMENT_BYTES = 20 * MIB
"""What a large pool asks the driver for below ``OWN_SEGMENT_BYTES`` (``large_segment_size``)."""
OWN_SEGMENT_BYTES = 10 * MIB
"""From here on a request gets a segment of its own (``kMinLargeAlloc``)."""
ROUND_LARGE_BYTES = 2 * MIB
"""To a multiple of which such a segment is rounded (``kRoundLarge``)."""
EXPANDABLE = "expandable_segments:True"
"""The one setting that programs are often told to try."""
UNLIMITED_BYTES = 1 << 62
"""A ``max_split_size`` that no block reaches."""

NUM_ROUNDUP_INTERVALS = 16
"""Sizes below 2 MiB, 2 to 4 MiB, ... and from 32 GiB: each has its own number of divisions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSettings:
    """How the allocator behaves.

    Attributes:
        expandable_segments: Whether a pool is one segment that grows page by page.
        max_split_size_bytes: Blocks from this size on are never split.
        max_non_split_rounding_bytes: How much larger than asked such a block may be.
        roundup_power2_divisions: For each of ``NUM_ROUNDUP_INTERVALS`` intervals of sizes, into how
            many steps a power of two is divided; requests are rounded up to a step. 0: no rounding.
        garbage_collection_threshold: Share of ``allowed_bytes`` above which whole cached segments
            are given back before a new one is asked for. 0: never.
        allowed_bytes: Limit set by ``torch.cuda.set_per_process_memory_fraction``; None: no limit.
            PyTorch collects garbage only under such a limit.
    """

    expandable_segments: bool
    max_split_size_bytes: int
    max_non_split_rounding_bytes: int
    roundup_power2_divisions: tuple[int, ...]
    garbage_collection_threshold: float
    allowed_bytes: int | None


PYTORCH_DEFAULTS = AllocatorSettings(
    expandable_segments=False,
    max_split_size_bytes=UNLIMITED_BYTES,
    max_non_split_rounding_bytes=LARGE_SEGMENT_BYTES,
    roundup_power2_divisions=(0,) * NUM_ROUNDUP_INTERVALS,
    garbage_collection_threshold=0.0,
    allowed_bytes=None,
)
"""What holds where ``PYTORCH_CUDA_ALLOC_CONF`` is not set."""


def parse_settings(text: str) -> AllocatorSettings:
    """Read settings such as ``expandable_segments:True,max_split_size_mb:128``.

    ``text``: the value of ``PYTORCH_CUDA_ALLOC_CONF``; empty means PyTorch's defaults. Returns the
    settings. Keys that do not touch device memory (``pinned_...``) are read over.

    Source:
        ``AcceleratorAllocatorConfig::parseArgs``.
    """
    settings = PYTORCH_DEFAULTS
    for key, value in _entries(text):
        reader = _READERS.get(key)
        if reader is not None:
            settings = reader(settings, value)
        elif key in _NOT_REPLAYED:
            raise InputError(f"the replay does not follow {key}:{value}; {_NOT_REPLAYED[key]}")
        elif key not in _HARMLESS:
            raise unknown_name("allocator setting", key, (*_READERS, *_NOT_REPLAYED, *_HARMLESS))
    return settings


def settings_in(environment: Mapping[str, str]) -> str:
    """Return the settings that an environment says; empty where it says none."""
    return next((environment[name] for name in VARIABLES if name in environment), "")


def spell_settings(settings: AllocatorSettings) -> str:
    """Spell settings as ``PYTORCH_CUDA_ALLOC_CONF`` would, those that differ from the defaults.

    ``allowed_bytes`` has no key there and is left out.
    """
    default = PYTORCH_DEFAULTS
    pairs = {}
    if settings.expandable_segments:
        pairs["expandable_segments"] = "True"
    if settings.max_split_size_bytes != default.max_split_size_bytes:
        pairs["max_split_size_mb"] = str(settings.max_split_size_bytes // MIB)
    if settings.max_non_split_rounding_bytes != default.max_non_split_rounding_bytes:
        pairs["max_non_split_rounding_mb"] = str(settings.max_non_split_rounding_bytes // MIB)
    if any(settings.roundup_power2_divisions):
        pairs["roundup_power2_divisions"] = _spell_divisions(settings.roundup_power2_divisions)
    if settings.garbage_collection_threshold:
        pairs["garbage_collection_threshold"] = str(settings.garbage_collection_threshold)
    return ",".join(f"{key}:{value}" for key, value in pairs.items())


def _spell_divisions(table: tuple[int, ...]) -> str:
    if len(set(table)) == 1 and table[0]:
        return str(table[0])
    return f"[{','.join(f'{1 << place}:{parts}' for place, parts in enumerate(table))}]"


def round_sizes(num_bytes: NDArray[np.int64], divisions: tuple[int, ...]) -> NDArray[np.int64]:
    """Round requests to block sizes; a request for nothing stays 0.

    Returns the sizes in bytes: multiples of 512, or of a power of two's division where one is set.

    Source:
        ``DeviceCachingAllocator::round_size`` and ``roundup_power2_next_division``.
    """
    rounded = -(-num_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES
    if not any(divisions):
        return rounded
    exponent = np.frexp(np.maximum(num_bytes, 1).astype(np.float64))[1].astype(np.int64) - 1
    interval = np.clip(exponent - (MIB.bit_length() - 1), 0, NUM_ROUNDUP_INTERVALS - 1)
    parts = np.maximum(np.array(divisions, dtype=np.int64)[interval], 1)
    step = np.maximum((np.int64(1) << exponent) // parts, 1)
    divided = (parts > 1) & (num_bytes > MIN_BLOCK_BYTES * parts)
    return np.where(divided, -(-num_bytes // step) * step, rounded)


def segment_sizes(block_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return what the driver is asked for, in bytes, when no cached block of that size is left.

    Source:
        ``DeviceCachingAllocator::get_allocation_size``.
    """
    own = -(-block_bytes // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES
    shared = np.where(block_bytes <= SMALL_BYTES, SMALL_SEGMENT_BYTES, LARGE_SEGMENT_BYTES)
    return np.where(block_bytes < OWN_SEGMENT_BYTES, shared, own)


# -- reading --

_ENTRY = re.compile(r"(\w+):(\[[^\]]*\]|[^,\[\]]+)(?:,|$)")
_DIVISION = re.compile(r"(\d+|>):(\d+)")


def _entries(text: str) -> Iterator[tuple[str, str]]:
    rest = re.sub(r"\s", "", text)
    while rest:
        match = _ENTRY.match(rest)
        if match is None:
            raise InputError(
                f"allocator settings stop making sense at {rest!r}; "
                "write key:value pairs with commas between them"
            )
        yield match[1], match[2]
        rest = rest[match.end() :]


def _expandable(settings: AllocatorSettings, value: str) -> AllocatorSettings:
    if value not in {"True", "False"}:
        raise InputError(f"expandable_segments is {value!r}; write True or False")
    return replace(settings, expandable_segments=value == "True")


def _mebibytes(key: str, value: str) -> int:
    least = LARGE_SEGMENT_BYTES // MIB
    if not value.isdecimal() or int(value) < least:
        raise InputError(f"{key} is {value!r}; write a whole number of MiB, {least} or more")
    return min(int(value) * MIB, UNLIMITED_BYTES)


def _max_split(settings: AllocatorSettings, value: str) -> AllocatorSettings:
    return replace(settings, max_split_size_bytes=_mebibytes("max_split_size_mb", value))


def _max_rounding(settings: AllocatorSettings, value: str) -> AllocatorSettings:
    size_bytes = _mebibytes("max_non_split_rounding_mb", value)
    return replace(settings, max_non_split_rounding_bytes=size_bytes)


def _threshold(settings: AllocatorSettings, value: str) -> AllocatorSettings:
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise InputError(
            f"garbage_collection_threshold is {value!r}; write a number between 0 and 1"
        )
    return replace(settings, garbage_collection_threshold=share)


def _divisions(settings: AllocatorSettings, value: str) -> AllocatorSettings:
    if value.startswith("["):
        table = _division_table(value[1:-1])
    else:
        table = (_power_of_two(value),) * NUM_ROUNDUP_INTERVALS
    return replace(settings, roundup_power2_divisions=table)


def _division_table(value: str) -> tuple[int, ...]:
    """Read ``256:1,512:2,>:4``: the first holds below its boundary too, ``>`` for all above."""
    table = [0] * NUM_ROUNDUP_INTERVALS
    last = -1
    for part in value.split(","):
        match = _DIVISION.fullmatch(part)
        if match is None:
            raise InputError(
                f"roundup_power2_divisions has {part!r}; write a list like [256:1,512:2,>:4]"
            )
        parts = 0 if match[2] == "0" else _power_of_two(match[2])
        if match[1] == ">":
            table[max(last, 0) + 1 :] = [parts] * (NUM_ROUNDUP_INTERVALS - max(last, 0) - 1)
            continue
        place = min(_power_of_two(match[1]).bit_length() - 1, NUM_ROUNDUP_INTERVALS - 1)
        first = 0 if last < 0 else place
        table[first : place + 1] = [parts] * (place + 1 - first)
        last = place
    return tuple(table)


def _power_of_two(value: str) -> int:
    number = int(value) if value.isdecimal() else 0
    if number < 1 or number & (number - 1):
        raise InputError(f"roundup_power2_divisions has {value!r}; write a power of two")
    return number


def _backend(settings: AllocatorSettings, value: str) -> AllocatorSettings:
    if value != "native":
        raise InputError(f"the replay does not follow backend:{value}; use backend:native")
    return settings


_READERS: dict[str, Callable[[AllocatorSettings, str], AllocatorSettings]] = {
    "backend": _backend,
    "expandable_segments": _expandable,
    "garbage_collection_threshold": _threshold,
    "max_non_split_rounding_mb": _max_rounding,
    "max_split_size_mb": _max_split,
    "roundup_power2_divisions": _divisions,
}
_NOT_REPLAYED = {
    "large_segment_size_mb": "leave it out",
    "per_process_memory_fraction": "give the bytes that it allows",
    "throw_on_cudamalloc_oom": "leave it out",
}
_HARMLESS = (
    "graph_capture_record_stream_reuse",
    "pinned_free_catch_all",
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "release_lock_on_cudamalloc",
)
