"""Precision recipes: one file per technique, one line per recipe.

Owns in which type parameters are held and in which context a micro-batch runs. Must not know of
models or tasks.
"""

import contextlib
from contextlib import AbstractContextManager
from functools import partial

import torch

from brimful.build.precision.autocast import autocast
from brimful.build.precision.base import Technique
from brimful.build.precision.loss_scaling import LossScaler
from brimful.build.precision.plain import plain
from brimful.build.precision.tf32 import fp32_products
from brimful.values.job import Job, Precision

TECHNIQUES: dict[Precision, Technique] = {
    "fp32": plain(torch.float32, products=partial(fp32_products, "ieee")),
    "tf32": plain(torch.float32, products=partial(fp32_products, "tf32")),
    "bf16": plain(torch.bfloat16),
    "fp16": plain(torch.float16),
    "bf16-mixed": autocast(torch.bfloat16),
    "fp16-mixed": autocast(torch.float16),
    "bf16-master": plain(torch.bfloat16, has_masters=True),
    "fp16-master": plain(torch.float16, has_masters=True),
    "fp8": autocast(torch.bfloat16),  # and products by ``fp8.py``
}
PARAMETER_DTYPE: dict[Precision, torch.dtype] = {
    name: technique.held for name, technique in TECHNIQUES.items()
}

COMPUTE_DTYPE: dict[Precision, torch.dtype] = {
    "bf16-mixed": torch.bfloat16,
    "fp16-mixed": torch.float16,
    "fp8": torch.bfloat16,
}
"""The type of what is computed where autocast makes it another one than that of the parameters."""


def forward_context(
    precision: Precision, device: torch.device, *, is_sharded: bool = False
) -> AbstractContextManager[None]:
    """Return the context for one micro-batch's forward pass.

    ``is_sharded``: whether parameters are gathered in the type that they compute in
    (``parallel.shard``), so that nothing is left for autocast.
    """
    return contextlib.nullcontext() if is_sharded else TECHNIQUES[precision].forward(device)


def micro_batch_context(precision: Precision) -> AbstractContextManager[None]:
    """Return the context for forward and backward of one micro-batch."""
    return TECHNIQUES[precision].products()


def build_scaler(job: Job) -> LossScaler | None:
    """Make the loss scaler of a recipe that has one (``job.SCALED``)."""
    return None if job.loss_scale is None else LossScaler(job.loss_scale)
