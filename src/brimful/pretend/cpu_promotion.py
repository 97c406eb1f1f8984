"""Copies that elementwise operations make on a CPU where their inputs are of several types.

A CUDA kernel turns every number as it reads it. On a CPU, TensorIterator first copies each input
that is not of the common type into one that is, and computes a result of another type into a copy;
all of these live as long as the call. Inputs that are broadcast are copied as they are given.

Source: ``compute_types`` in ``aten/src/ATen/TensorIterator.cpp``: what it does on a CPU with
``promote_inputs_to_common_dtype`` and ``cast_common_dtype_to_outputs``. Named from memory; the rule
was measured (``tests/pretend/test_cpu_promotion.py``).
"""

from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from brimful.pretend.workspace_call import Call, Workspaces, size

_aten = torch.ops.aten
_OTHERWISE = frozenset({
    _aten._to_copy, _aten.copy_, _aten.clone, _aten.masked_fill, _aten.masked_fill_,  # noqa: SLF001
})  # fmt: skip
"""Elementwise, and yet inputs keep their types: they cast themselves, or a mask is a mask."""
_WHY = "inputs in the common type"


def is_promoting(func: Any) -> bool:
    """Whether calls of an operator may meet inputs of several types and turn them into one."""
    return torch.Tag.pointwise in func.tags and func.overloadpacket not in _OTHERWISE


def promotion(call: Call) -> Workspaces:
    """Return the copies that one call makes, in bytes.

    ``call``: of an operator that ``is_promoting``.
    """
    given = call.args[1:] if call.func.overloadpacket is _aten.where else call.args
    inputs = [x for x in given if isinstance(x, (torch.Tensor, int, float))]
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    if len(_types(tensors)) < 2 and not _turns_integers(tensors, call.out):  # noqa: PLR2004
        return ()
    common = _common_type(inputs, call.out)
    copied = [x.numel() for x in tensors if x.dtype != common]
    if call.func._schema.is_mutable and tensors[0].dtype != common:  # noqa: SLF001
        copied.append(tensors[0].numel())
    return size(sum(copied) * common.itemsize, _WHY)


def _types(tensors: list[torch.Tensor]) -> set[torch.dtype]:
    """Types that matter: a tensor without dimensions is turned at the cost of a number."""
    return {x.dtype for x in tensors if x.dim()}


def _turns_integers(tensors: list[torch.Tensor], out: Any) -> bool:
    is_float = isinstance(out, torch.Tensor) and out.is_floating_point()
    return is_float and any(x.dim() and not x.is_floating_point() for x in tensors)


def _common_type(inputs: list[Any], out: Any) -> torch.dtype:
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    _, common = elementwise_dtypes(*inputs, type_promotion_kind=kind)
    if isinstance(out, torch.Tensor) and out.is_floating_point() and not common.is_floating_point:
        return out.dtype
    found: torch.dtype = common
    return found
