"""Strategies as the flags by which a command means them."""

from brimful.values.job import Job
from brimful.values.strategy import Strategy, world_size

_FLAGS = {"activation_checkpointing": "ac"}
"""The short form of a field's flag."""
_SPREAD = ("zero", "dp_replicate", "dp_shard", "tp", "pp", "accumulate")
"""Fields whose defaults depend on how many devices there are."""


def flag_words(strategy: Strategy, other: Strategy) -> str:
    """Say the flags by which a command that means one strategy means another; empty: none."""
    is_larger = world_size(strategy) != world_size(other)
    usual = {"zero": 3, "dp_shard": world_size(other), "dp_replicate": 1, "tp": 1, "pp": 1}
    is_usual = all(getattr(other, name) == value for name, value in usual.items())
    words = []
    for name in Strategy.__struct_fields__:
        value = getattr(other, name)
        is_spelled = is_larger and not is_usual and name in _SPREAD
        is_left = is_larger and is_usual and name in _SPREAD
        if is_left or (value == getattr(strategy, name) and not is_spelled):
            continue
        flag = f"--{_FLAGS.get(name, name).replace('_', '-')}"
        words.append(flag if value is True else f"{flag} {_flag_value(value)}")
    return " ".join(words)


def fix_words(job: Job, strategy: Strategy, other: Strategy) -> str:
    """Say the same of a job, whose batch hangs on the micro-batch where nobody typed it."""
    words = flag_words(strategy, other)
    is_smaller = other.micro_batch != strategy.micro_batch
    return f"{words} --global-batch {job.global_batch}" if is_smaller else words


def _flag_value(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value) or "''"
