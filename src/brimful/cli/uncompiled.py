"""What a file says of fp8 and the compiler, planned without where this version runs neither there.

Both change speed above all: that is bounded by the parts of a step (``words``).
"""

import argparse
from typing import TYPE_CHECKING

from brimful.cli import resolved
from brimful.errors import InputError, UnsupportedError
from brimful.values.job import FP8
from brimful.values.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brimful.hardware.cluster import Device
    from brimful.show.summary import Fact
    from brimful.values.plan import Estimate

_NAMES = {"compile": "compile", "precision": "float8"}
"""Flags, each as files call what is planned without."""
_BESIDE = ("attention", "tp", "pp", "ep", "zero", "dp_replicate", "dp_shard", "compile", "offload")


def plan_without(args: argparse.Namespace, said: "Iterable[str]") -> tuple[str, ...]:
    """Set the flags of a file to what is run, and return those that were changed."""
    open_ = {*said} & {*_NAMES}
    if "precision" in open_ and args.precision != FP8:
        open_.discard("precision")
    if args.compile in {None, "none"}:
        open_.discard("compile")
    left: list[str] = []
    while open_ and (error := _refusal(args)) is not None:
        changed = open_.intersection(error.nearest)
        if not changed:
            break
        for flag in changed:
            setattr(args, flag, error.nearest[flag])
            left.append(flag)
        open_ -= changed
    return tuple(left)


def _refusal(args: argparse.Namespace) -> UnsupportedError | None:
    """Return why what the file says together is not run; None: it is, or nobody knows yet."""
    from brimful.techniques.runnable import check_strategy

    given = {name: getattr(args, name, None) for name in _BESIDE}
    beside = {
        name: each for name, each in given.items() if each is not None and type(each) is not list
    }
    if beside.get("zero") and "dp_shard" not in beside:
        beside["dp_shard"] = 2  # over all that are left, however many these are
    strategy = Strategy(
        micro_batch=args.micro_batch if isinstance(args.micro_batch, int) else 1,
        activation_checkpointing="none", loss_chunks=1,
        **{"attention": "sdpa", **beside},
    )  # fmt: skip
    try:
        check_strategy(resolved.job_from(args), strategy)
    except UnsupportedError as error:
        return error
    except InputError:
        return None
    return None


def facts(
    args: argparse.Namespace, estimate: "Estimate | None", device: "Device"
) -> "tuple[Fact, ...]":
    """Say what stands in for what the file says, and what that would change at most.

    ``args``: with ``planned_without``, of ``plan_without``. ``estimate``: what was predicted of the
    plan; None: nothing.
    """
    from brimful.show.summary import Fact

    without: tuple[str, ...] = getattr(args, "planned_without", ())
    if not without:
        return ()
    theirs = " and ".join(sorted(_NAMES[flag] for flag in without))
    is_fp8 = "precision" in without
    ours = f"{args.precision if is_fp8 else 'eager'}{', eager,' * (is_fp8 and len(without) > 1)}"
    times = most_times(estimate, device, fp8=is_fp8, compiled="compile" in without)
    rate = None if estimate is None else estimate.tokens_per_s
    so = "" if rate is None else f": {rate:,.0f} tokens/s so"
    faster = "" if times is None else f", at most {times:.1f} x as fast with them"
    return (Fact("stands in", f"{ours} for {theirs}, whose memory is not told{so}{faster}"),)


def most_times(
    estimate: "Estimate | None", device: "Device", *, fp8: bool, compiled: bool
) -> float | None:
    """Return a bound of how many times as fast a step would be; None: nothing is known of it.

    Of products in fp8 all would run at the data sheet's rate in fp8 and as little would be sent as
    bytes are narrower; compiled, nothing but products would take any time.

    ``estimate``: of the step without. ``fp8``: whether products would be in fp8.
    """
    from brimful.hardware.cluster import matrix_rate

    step = None if estimate is None else estimate.predicted_step_time
    rates = matrix_rate(device, FP8), matrix_rate(device, "bf16-mixed")
    if step is None or not all(rates):
        return None
    matrix_s = step.matrix_s * rates[1] / rates[0] if fp8 else step.matrix_s
    others_s = 0.0 if compiled else step.memory_s + step.launch_s
    sent_s = step.exposed_s / 2 if fp8 else step.exposed_s
    least_s = matrix_s + others_s + sent_s
    return step.total_s / least_s if least_s else None
