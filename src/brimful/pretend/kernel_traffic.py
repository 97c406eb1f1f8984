"""What kernels of Triton's move: each tensor that they are given, once for every time they pass it.

Nothing of a kernel runs here, so that how often it reads or writes a tensor is told by its source.
A kernel that is not listed is taken to pass each of its tensors once.

Source: liger-kernel 0.8.5, ``ops/rope.py``, ``swiglu.py``, ``geglu.py``, ``cross_entropy.py``,
``utils.py``: what is written over is read first; the loss reads logits twice, for the sum of
exponentials and for the gradient that it writes over them.
"""

from collections.abc import Mapping
from typing import Any

import torch

_OVER = 2
_ROPE = {"q_ptr": _OVER, "k_ptr": _OVER}
_GATED = {"a_ptr": _OVER, "b_ptr": _OVER}
_PASSES: dict[str, dict[str, int]] = {
    "_triton_rope": _ROPE,
    "_swiglu_backward_kernel": _GATED,
    "_swiglu_backward_kernel_tiled": _GATED,
    "_geglu_tanh_backward_kernel": {"a": _OVER, "b": _OVER},
    "liger_cross_entropy_kernel": {"X_ptr": 3},
    "element_mul_kernel": {"X_ptr": _OVER},
}


def moved_by(name: str, arguments: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the bytes of each tensor that a kernel moves."""
    passes = _PASSES.get(name, {})
    return tuple(
        passes.get(argument, 1) * value.numel() * value.element_size()
        for argument, value in arguments.items()
        if isinstance(value, torch.Tensor)
    )
