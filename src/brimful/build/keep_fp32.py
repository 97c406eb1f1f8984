"""Which modules of a model the job keeps in fp32, and what of it cannot be kept."""

from typing import Any

import torch
from torch import nn

from brimful.build.precision import COMPUTE_DTYPE, PARAMETER_DTYPE
from brimful.build.precision.kept import find_kept, hold_fp32, lay_border, sharing
from brimful.build.quantize import is_quantized
from brimful.errors import InputError, UnsupportedError
from brimful.values.job import Job
from brimful.values.strategy import Attention, Strategy, gathers

_HALF_ONLY: frozenset[Attention] = frozenset({"flash", "cudnn", "varlen"})
"""Attention kernels that take no fp32 queries."""


def keep_fp32(model: nn.Module, job: Job, *, is_gathered: bool = False) -> nn.Module:
    """Hold and compute in fp32 what the job says, in place.

    What shares a weight with a kept module is kept too where the weight would else be narrow. The
    output layer's logits stay fp32 in any case: the loss takes them as they come.

    ``model``: adapted where it is to be; before it is sharded. ``is_gathered``: whether parameters
    are gathered in the type that they compute in. Raises InputError: a name names no module, or
    weights that are in no floating-point type.
    """
    kept = find_kept(model, job.keep_fp32)
    for path, module in kept.items():
        if job.adapter is not None and any(map(is_quantized, module.modules())):
            raise InputError(
                f"keep_fp32 names {path}, whose weights are held in {job.adapter.base}; name other "
                f"modules, or use base=same"
            )
    returned = _returned(job, is_gathered=is_gathered)
    tied = [] if returned is None else sharing(model, kept.values())
    for module in (*kept.values(), *tied):
        hold_fp32(module)
        lay_border(module, returned=None if module is _head(model) else returned)
    return model


def _returned(job: Job, *, is_gathered: bool) -> torch.dtype | None:
    """Return the type that surrounds what is kept; None where autocast joins types."""
    if job.precision not in COMPUTE_DTYPE:
        return PARAMETER_DTYPE[job.precision]
    return COMPUTE_DTYPE[job.precision] if is_gathered else None


def _head(model: Any) -> nn.Module | None:
    has_word = hasattr(model, "get_output_embeddings")
    head: nn.Module | None = model.get_output_embeddings() if has_word else None
    return head


def check_kept(job: Job, strategy: Strategy, model: nn.Module) -> nn.Module:
    """Return the model as it is, or say which module a strategy cannot keep in fp32.

    Raises InputError: a name names no module.
    """
    for path, module in find_kept(model, job.keep_fp32).items():
        if gathers(strategy) and sharing(model, (module,)):
            raise UnsupportedError(
                f"keep_fp32 names {path}, whose weight is tied to another module's, and zero="
                f"{strategy.zero} gathers each apart; use zero 0 or 1, or leave it out"
            )
        if strategy.attention in _HALF_ONLY and any(map(_attends, module.modules())):
            raise UnsupportedError(
                f"keep_fp32 names {path}, which attends, and attention={strategy.attention} takes "
                f"16-bit types only; use sdpa or eager"
            )
    return model


def _attends(module: nn.Module) -> bool:
    return "attention" in type(module).__name__.lower()
