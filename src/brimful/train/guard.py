"""Keeping a step whose gradients are not finite from touching the weights.

Without it the update would write NaN into every weight, and nothing could be looked into after.
Runs that scale their loss skip such steps themselves (``build/precision/loss_scaling.py``).
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from brimful.build.deepspeed import step as deepspeed
from brimful.build.gradient_clip import HOST_PIECE, PIECE, gradient_norm
from brimful.build.offload import HostOptimizer, rule_of, updated_by
from brimful.build.own import range_of, whole
from brimful.build.precision.masters import MasterWeights
from brimful.build.program import Program, gradients


@contextmanager
def keeping_weights(program: Program) -> Iterator[None]:
    """Turn an update by gradients that hold Inf or NaN into one that changes nothing.

    Costs one reading of one number from the device per step: the clip has multiplied every gradient
    by the same factor, so that one of them tells of all. Without a clip every gradient is read.
    """
    if program.scaler is not None or deepspeed.runs(program):  # both see to it themselves
        yield
        return
    if program.early is not None:  # which has applied a gradient before the next one exists
        yield
        return

    def check(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if not _were_clipped_by_a_number(program) and not _have_a_norm(program):
            optimizer.zero_grad(set_to_none=True)  # what has no gradient is not updated

    handle = program.optimizer.register_step_pre_hook(check)
    try:
        yield
    finally:
        handle.remove()


def is_finite(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor holds neither Inf nor NaN, without a copy of it."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    return bool(torch.stack(torch.aminmax(tensor.detach())).isfinite().all())


def _have_a_norm(program: Program) -> bool:
    is_clipped = program.job.clip > 0
    if is_clipped and isinstance(rule_of(program.optimizer), MasterWeights):
        return False  # the factor that masters are clipped by was no number
    # Where gradients are clipped a norm of NaN has come to every device of a pipeline.
    row = None if is_clipped or program.pipeline is None else program.pipeline.row
    parameters = updated_by(program.optimizer, program.model)
    piece = HOST_PIECE if isinstance(program.optimizer, HostOptimizer) else PIECE
    return math.isfinite(float(gradient_norm(parameters, row=row, piece=piece)))


def _were_clipped_by_a_number(program: Program) -> bool:
    """Tell whether the clip shows that all gradients are finite; False where it shows nothing.

    A norm of NaN makes all gradients NaN; one of Inf makes what was finite 0 and the rest NaN. So a
    gradient that is finite and not 0 was multiplied by a number, which takes a finite norm.
    """
    if program.job.clip <= 0:
        return False
    rule = rule_of(program.optimizer)
    if isinstance(rule, MasterWeights):
        return 0 < float(rule.gradient_factor) <= 1
    smallest = _smallest_gradient(program)
    if smallest is None:
        return True
    low, high = torch.stack(torch.aminmax(smallest)).tolist()
    return bool(0 < max(-low, high) < float("inf"))


def _smallest_gradient(program: Program) -> torch.Tensor | None:
    """Return the gradient of fewest numbers, the same in full in every process."""
    trained = updated_by(program.optimizer, program.model)
    ranges = [(which, p) for p in trained if (which := range_of(p)) is not None]
    if ranges:  # of which a process may have no numbers
        which, parameter = min(ranges, key=lambda each: math.prod(each[0].shape))
        own = parameter.grad
        return which.whole(parameter.new_empty(0) if own is None else own)
    found = [gradient for gradient in gradients(program) if gradient.numel()]
    return whole(min(found, key=torch.numel)) if found else None
