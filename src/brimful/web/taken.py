"""A strategy as fields of the form, so that the page asks about it."""

from typing import TYPE_CHECKING

from brimful.cli import defaults
from brimful.values.strategy import Strategy, default_accumulate, default_reference
from brimful.web.state import STRATEGY

if TYPE_CHECKING:
    from brimful.cli import resolved

_OF_SEVERAL = frozenset({"zero", "dp_replicate", "dp_shard", "tp", "ep", "pp"})
_OF_A_PIPELINE = frozenset({"pp_schedule", "stages_per_device", "stage_blocks"})


def spelled_fields(strategy: Strategy) -> dict[str, str]:
    """Spell every field of a strategy as its flag takes it; empty where it says nothing."""
    return {name: _spelled(getattr(strategy, name)) for name in STRATEGY}


def _spelled(value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else ""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def taken(asked: "resolved.Asked") -> dict[str, str]:
    """Return the fields that say a strategy, so that the page asks about it.

    Each field of a strategy is among them, empty where leaving it out says the same: what stood in
    it before is of another question.
    """
    job, cluster, strategy = asked
    usual = {
        "accumulate": default_accumulate(strategy.engine, strategy.zero, strategy.pp),
        "reference": default_reference(job),
        "compile": defaults.COMPILE,
        "fsdp": defaults.FSDP,
        "fused_kernels": defaults.FUSED_KERNELS,
    }
    left = {name for name, value in usual.items() if getattr(strategy, name) == value}
    left |= _OF_A_PIPELINE if strategy.pp == 1 else set()
    left |= _OF_SEVERAL if cluster.num_devices == 1 and not strategy.zero else set()
    named = spelled_fields(strategy)
    emptied = {name: "" if name in left else value for name, value in named.items()}
    return {**emptied, "global_batch": str(job.global_batch)}
