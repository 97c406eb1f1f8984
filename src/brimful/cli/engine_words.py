"""What DeepSpeed's own engine takes of what is planned for a file that it runs, in words."""

import argparse
from typing import TYPE_CHECKING, Literal, NamedTuple

from brimful.errors import InputError, UnsupportedError
from brimful.units import format_bytes

if TYPE_CHECKING:
    from brimful.show.summary import Meter
    from brimful.values.plan import Plan

ENGINE: Literal["deepspeed"] = "deepspeed"


class Taken(NamedTuple):
    """What an engine takes of a GPU, beside what there is, and whether it fits."""

    meter: "Meter"
    fits: bool


def settings_of(args: argparse.Namespace) -> str:
    """Return how its engine shards: as was typed, else as a file says."""
    return args.engine_settings or getattr(args, "files_engine_settings", None) or ""


def taken_of(args: argparse.Namespace, plan: "Plan") -> "Taken | None":
    """Return what its engine takes of a plan for a file that it runs; None: that is not known."""
    from msgspec.structs import replace

    from brimful.cost.estimate import estimate_or_none
    from brimful.cost.reserved import predicted_reserved
    from brimful.show.predicted import meter_of, verdict_of
    from brimful.techniques.runnable import check_strategy
    from brimful.values.strategy import default_accumulate

    if getattr(args, "files_engine_settings", None) is None:
        return None
    zero, count = plan.strategy.zero, plan.cluster.num_devices
    strategy = replace(
        plan.strategy, engine=ENGINE, engine_settings=settings_of(args), dp_shard=count,
        dp_replicate=1, accumulate=default_accumulate(ENGINE, zero), allocator=args.allocator or "",
    )  # fmt: skip
    try:
        check_strategy(plan.job, strategy)
    except (InputError, UnsupportedError):
        return None
    asked = (plan.job, plan.cluster, strategy)
    made = estimate_or_none(*asked)
    if made is None:
        return None
    made = replace(made, predicted_reserved=predicted_reserved(*asked))
    return Taken(meter_of(made), verdict_of(made) != "NO")


def engine_words(args: argparse.Namespace, plan: "Plan") -> str:
    """Say what that is; empty: it is not known."""
    taken = taken_of(args, plan)
    if taken is None:
        return ""
    meter, does = taken.meter, "fits" if taken.fits else "does not fit"
    room = f"{format_bytes(meter.used_bytes)} of {format_bytes(meter.usable_bytes)}"
    return f"DeepSpeed's engine takes {room}, predicted, and {does}"


def engine_json(args: argparse.Namespace, plan: "Plan") -> dict[str, dict[str, object]]:
    """Return the same for JSON; empty: it is not known."""
    taken = taken_of(args, plan)
    if taken is None:
        return {}
    return {ENGINE: {"predicted_bytes": taken.meter.used_bytes, "fits": taken.fits}}
