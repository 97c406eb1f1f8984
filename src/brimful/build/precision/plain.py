"""Plain recipes: everything is held and computed in one type, without autocast.

What torch leaves in fp32 of its own accord stays so: ``TokenLoss`` widens the logits, and kernels
add up in fp32.
"""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from brimful.build.precision.base import Technique


def plain(
    dtype: torch.dtype,
    *,
    products: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    has_masters: bool = False,
) -> Technique:
    """Return the technique of one type for everything.

    ``products``: the context of a whole micro-batch; by default there is none. ``has_masters``:
    whether the optimizer keeps fp32 copies.
    """
    return Technique(dtype, forward=_as_it_is, products=products, has_masters=has_masters)


def _as_it_is(_device: torch.device) -> AbstractContextManager[None]:
    return contextlib.nullcontext()
