"""The same job in another recipe, and what speaks against running it here. No torch."""

from typing import get_args

import msgspec

from brimful.compare.record import MOST_STEPS
from brimful.errors import BrimfulError
from brimful.hardware.cluster import Device
from brimful.techniques.runnable import check_strategy
from brimful.values.job import SCALED, Job, LossScale, Precision, check_job
from brimful.values.plan import Plan

RECIPES: tuple[Precision, ...] = get_args(Precision)
"""Every recipe there is, the reference first."""


def shortened(job: Job, num_steps: int | None) -> Job:
    """Return the job with the steps that are compared, and its warm-up in proportion.

    ``num_steps``: steps; None: the plan's own, at most ``MOST_STEPS``.
    """
    steps = min(job.num_steps, MOST_STEPS) if num_steps is None else num_steps
    warmup = min(steps, job.warmup_steps * steps // job.num_steps)
    return msgspec.structs.replace(job, num_steps=steps, warmup_steps=warmup)


def in_recipe(plan: Plan, recipe: Precision, loss_scale: LossScale) -> Plan:
    """Return the plan with nothing changed but the recipe, and the loss scale that goes with it.

    ``loss_scale``: for a recipe that scales its loss, where the plan's own does not. Raises
    InputError: the recipe does not go with something else in the plan. Raises UnsupportedError:
    Likewise.
    """
    scale = (plan.job.loss_scale or loss_scale) if recipe in SCALED else None
    job = check_job(msgspec.structs.replace(plan.job, precision=recipe, loss_scale=scale))
    strategy = check_strategy(job, plan.strategy)
    return msgspec.structs.replace(plan, job=job, strategy=strategy, estimate=None)


def why_not(plan: Plan, recipe: Precision, loss_scale: LossScale) -> str | None:
    """Say why running a recipe would tell nothing, or cannot be done; None: nothing is known."""
    if recipe == "tf32" and _has_no_tf32(plan.cluster.device):
        return "this device has no TF32 products, so that it computes exactly as fp32 does"
    try:
        in_recipe(plan, recipe, loss_scale)
    except BrimfulError as error:
        return str(error)
    return None


def _has_no_tf32(device: Device) -> bool:
    return device.kernels == "cpu" or device.matrix_flops_per_s.tf32 == 0
