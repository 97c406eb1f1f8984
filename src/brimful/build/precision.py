"""Precision recipes: the type parameters are held in, and the context the forward runs in."""

import contextlib
from contextlib import AbstractContextManager

import torch

from brimful.job import Precision

PARAMETER_DTYPE: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "bf16-mixed": torch.float32,
    "fp16-mixed": torch.float32,
    "bf16-master": torch.bfloat16,
    "fp16-master": torch.float16,
}


def forward_context(precision: Precision, device: torch.device) -> AbstractContextManager[None]:
    """Return the context for one micro-batch's forward pass.

    ``bf16-mixed`` is torch's autocast, whose cache keeps the bf16 copy of each weight until the
    context ends. The other recipes compute in the type of the parameters.
    """
    if precision == "bf16-mixed":
        autocast: AbstractContextManager[None] = torch.autocast(device.type, dtype=torch.bfloat16)
        return autocast
    return contextlib.nullcontext()
