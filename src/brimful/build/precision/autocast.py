"""Mixed recipes: parameters in fp32, torch's autocast in the forward pass.

Autocast keeps a 16-bit copy of each weight until the context ends, and backward what it needs of
them for longer.
"""

import contextlib
from contextlib import AbstractContextManager

import torch

from brimful.build.precision.base import Technique


def autocast(dtype: torch.dtype) -> Technique:
    """Return the technique of computing in ``dtype`` where autocast's lists say so."""

    def forward(device: torch.device) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = torch.autocast(device.type, dtype=dtype)
        return context

    return Technique(
        torch.float32, forward=forward, products=contextlib.nullcontext, has_masters=False
    )
