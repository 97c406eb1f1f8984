"""What a plan takes as a target has it, where that cannot be told all that saves memory."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from brimful.cost.estimate import estimate
from brimful.cost.reserved import predicted_reserved
from brimful.errors import BrimfulError
from brimful.export.lost import Lost
from brimful.show.predicted import meter_of, verdict_of
from brimful.show.summary import on_each
from brimful.values.plan import Estimate, Plan
from brimful.values.strategy import Strategy

_INSTEAD: Mapping[str, Any] = {
    "loss_chunks": 1,
    "compile": "none",
    "fused_kernels": "none",
    "offload": "none",
    "optimizer_in_backward": False,
}
"""What runs where a target is not told otherwise."""
_WHOLE = "full"


def as_written(plan: Plan, lost: Iterable[Lost]) -> Strategy | None:
    """Return the strategy that a target runs; None: what it does instead is not known.

    What is set beside it (the allocator's settings, in the environment) counts as set.
    """
    strategy = plan.strategy
    for each in lost:
        if each.changes != "memory" or each.field == "allocator":
            continue
        if each.field in _INSTEAD:
            strategy = replace(strategy, **{each.field: _INSTEAD[each.field]})
        elif each.field == "activation_checkpointing" and each.value.startswith(_WHOLE):
            strategy = replace(strategy, activation_checkpointing=_WHOLE)
        elif each.field in Strategy.__struct_fields__:
            return None
    return strategy


def estimate_written(plan: Plan, lost: Iterable[Lost]) -> Estimate | None:
    """Predict what a target runs; None where that is the plan's own, or not known."""
    strategy = as_written(plan, lost)
    if strategy is None or strategy == plan.strategy or plan.estimate is None:
        return None
    asked = plan.job, plan.cluster, strategy
    try:
        return replace(estimate(*asked), predicted_reserved=predicted_reserved(*asked))
    except BrimfulError:
        return None


def written_words(plan: Plan, made: Estimate, to: str) -> str:
    """Say what a target runs into, and by what a plan is found that it can be told."""
    cluster = plan.cluster
    meter = on_each(meter_of(made), cluster.num_devices, cluster.device.kernels)
    words = f"as written here {verdict_of(made)}, {meter.label}: {meter.words}"
    return f"{words}; brimful plan --for {to} plans for what it can be told"
