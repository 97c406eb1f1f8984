"""What DeepSpeed's JSON says of how its engine shards, where that is not what this version writes.

A strategy carries it in one line, as it carries the allocator's settings:
``overlap_comm:false,reduce_bucket_size:500000000``. No torch.

Source: ``zero/config.py`` of DeepSpeed 0.19.8.
"""

from collections.abc import Mapping
from typing import NamedTuple

from brimful.errors import InputError, unknown_name

GATHERS_ALL = 3
"""The stage that gathers parameters, whose collectives run beside the computing by default."""
_SWITCHES = {"true": 1, "false": 0}


class EngineSettings(NamedTuple):
    """Keys of ``zero_optimization`` that change what is in memory; counts are of numbers.

    Attributes:
        overlap_comm: Whether collectives run on streams of their own, and so have pools of their
            own; of stages 1 and 2 beside a second bucket.
        reduce_bucket_size: Gradients that are reduced together.
        sub_group_size: Of a share, what stage 3 updates at a time.
        stage3_prefetch_bucket_size: What is gathered ahead at a time.
        stage3_param_persistence_threshold: The largest parameter that is never sharded.
        stage3_max_live_parameters: How much may be gathered.
        stage3_max_reuse_distance: What is needed again within so many stays.
    """

    overlap_comm: int
    reduce_bucket_size: int
    sub_group_size: int
    stage3_prefetch_bucket_size: int
    stage3_param_persistence_threshold: int
    stage3_max_live_parameters: int
    stage3_max_reuse_distance: int


OVERLAPS, REDUCED = "overlap_comm", "reduce_bucket_size"
OF_STAGE_3 = tuple(each for each in EngineSettings._fields if each not in {OVERLAPS, REDUCED})
"""Keys that the stages before it do not read."""
DEEPSPEEDS = EngineSettings(
    overlap_comm=0,
    reduce_bucket_size=500_000_000,
    sub_group_size=1_000_000_000,
    stage3_prefetch_bucket_size=50_000_000,
    stage3_param_persistence_threshold=100_000,
    stage3_max_live_parameters=1_000_000_000,
    stage3_max_reuse_distance=1_000_000_000,
)
"""Its own defaults; ``overlap_comm`` is that of stages 1 and 2."""


def parse_engine_settings(text: str) -> dict[str, int]:
    """Read what a strategy says of DeepSpeed's engine, key by key; a switch is 0 or 1.

    Raises InputError: a key is none of ``EngineSettings``, or its value is none that it takes.
    """
    found = {}
    for pair in filter(None, text.split(",")):
        key, _, value = (part.strip() for part in pair.partition(":"))
        if key not in EngineSettings._fields:
            raise unknown_name("setting of DeepSpeed's engine", key, EngineSettings._fields)
        number = _SWITCHES.get(value.lower()) if key == OVERLAPS else _count(value)
        if number is None:
            takes = "true or false" if key == OVERLAPS else "a whole number, 0 or more"
            raise InputError(f"engine_settings: {key}:{value} is not known; give {takes}")
        found[key] = number
    return found


def spell_engine_settings(settings: Mapping[str, int]) -> str:
    """Write settings as ``parse_engine_settings`` reads them."""
    return ",".join(
        f"{key}:{str(bool(value)).lower() if key == OVERLAPS else value}"
        for key, value in settings.items()
    )


def _count(text: str) -> int | None:
    try:
        number = int(float(text))
    except (ValueError, OverflowError):
        return None
    return number if number >= 0 and number == float(text) else None
