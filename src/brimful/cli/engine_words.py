"""What DeepSpeed's own engine takes of what is planned for a file that it runs, in words."""

import argparse
from typing import TYPE_CHECKING, Literal

from brimful.errors import InputError
from brimful.units import format_bytes

if TYPE_CHECKING:
    from brimful.values.plan import Plan

ENGINE: Literal["deepspeed"] = "deepspeed"


def settings_of(args: argparse.Namespace) -> str:
    """Return how its engine shards: as was typed, else as a file says."""
    return args.engine_settings or getattr(args, "files_engine_settings", None) or ""


def words_of(args: argparse.Namespace, plan: "Plan") -> str:
    """Say what its engine takes of a plan for a file that it runs; empty: that is not known."""
    from msgspec.structs import replace

    from brimful.cost.estimate import estimate_or_none
    from brimful.cost.reserved import predicted_reserved
    from brimful.show.predicted import meter_of, verdict_of
    from brimful.techniques.runnable import check_strategy
    from brimful.values.strategy import default_accumulate

    if getattr(args, "files_engine_settings", None) is None:
        return ""
    zero, count = plan.strategy.zero, plan.cluster.num_devices
    strategy = replace(
        plan.strategy, engine=ENGINE, engine_settings=settings_of(args), dp_shard=count,
        dp_replicate=1, accumulate=default_accumulate(ENGINE, zero), allocator=args.allocator or "",
    )  # fmt: skip
    try:
        check_strategy(plan.job, strategy)
    except InputError:
        return ""
    asked = (plan.job, plan.cluster, strategy)
    made = estimate_or_none(*asked)
    if made is None:
        return ""
    made = replace(made, predicted_reserved=predicted_reserved(*asked))
    meter, does = meter_of(made), "does not fit" if verdict_of(made) == "NO" else "fits"
    room = f"{format_bytes(meter.used_bytes)} of {format_bytes(meter.usable_bytes)}"
    return f"DeepSpeed's engine takes {room}, predicted, and {does}"
