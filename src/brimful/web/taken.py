"""A strategy as fields of the form, so that the page asks about it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brimful.cli import flags

_TOLD = (
    "micro_batch", "activation_checkpointing", "loss_chunks", "zero", "dp_replicate", "dp_shard",
    "tp", "pp", "ep", "accumulate", "offload",
)  # fmt: skip
_ALONE = frozenset({"micro_batch", "activation_checkpointing", "loss_chunks", "offload"})


def taken(asked: "flags.Asked") -> dict[str, str]:
    """Return the fields that say a strategy, so that the page asks about it."""
    is_alone = asked.cluster.num_devices == 1
    strategy = asked.strategy
    named = {name: str(getattr(strategy, name)) for name in _TOLD if not is_alone or name in _ALONE}
    if strategy.pp > 1:
        named |= {
            "pp_schedule": strategy.pp_schedule,
            "stages_per_device": str(strategy.stages_per_device),
        }
    batch = {"global_batch": str(asked.job.global_batch)}
    switches = {"optimizer_in_backward": "1" if strategy.optimizer_in_backward else ""}
    return {**named, **batch, "allocator": strategy.allocator, **switches}
