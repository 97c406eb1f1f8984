"""That numbers are finite, and parameters of distributions valid: what checks of them find.

A program that looks for infinities in its gradients finds none, and ``torch.distributions`` none
among its parameters that is out of its range (``torch/distributions/distribution.py`` asks
``_is_all_true``, and so do ``torch._check_tensor_all`` and its like). A check of a tensor on the
CPU, whose numbers are known there, finds the same.
"""

import math
from typing import Any

import torch

_aten = torch.ops.aten
_FINDS = {
    _aten.isfinite.default: 1, _aten.isnan.default: 0, _aten.isinf.default: 0,
    _aten._is_all_true.default: 1,  # noqa: SLF001
}  # fmt: skip
_COMPARES = {
    _aten.eq.Tensor: 1, _aten.ne.Tensor: 0,
    _aten.eq.Scalar: 0, _aten.ne.Scalar: 1,
}  # fmt: skip
"""What comparing finds: a tensor equals itself, and no number of it is infinite. PyTorch puts the
three above together of these."""


def of_finite(func: Any, args: Any) -> int | None:
    """Return what an operation finds in finite numbers, if that is the same for all of them.

    Returns 1 or 0, of every number; None: it hangs on which numbers they are.
    """
    if func in _FINDS:
        return _FINDS[func]
    if func not in _COMPARES or not args[0].is_floating_point():
        return None
    other = args[1]
    is_infinite = isinstance(other, float) and not math.isfinite(other)
    return _COMPARES[func] if other is args[0] or is_infinite else None
