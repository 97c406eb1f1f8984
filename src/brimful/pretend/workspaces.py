"""Bytes that CUDA kernels take from PyTorch's caching allocator and that no result shows.

Which operators do so is said by a table (``data/workspaces``), each row with the source it was
read from; how much, by the rules that its rows name. An operator is *known* when a row covers it or
when one of two rules does: elementwise kernels (PyTorch tags them) write their outputs and nothing
else, and views allocate nothing. Every other operator is unknown, and is to be listed, not guessed.
"""

import os
import re
from functools import cache
from typing import Any

import torch

from brimful.hardware.cuda_libraries import libraries
from brimful.pretend import kernels
from brimful.pretend.workspace_call import Call, Rule, Workspace, total
from brimful.pretend.workspace_data import OUTPUTS_ONLY, UNKNOWN, Row, rows
from brimful.pretend.workspace_rules import RULES

__all__ = [
    "Workspace",
    "blas_lt_workspace_bytes",
    "blas_workspace_bytes",
    "bound_bytes",
    "is_known",
    "row_of",
    "uses_blas",
    "uses_blas_lt",
    "workspaces",
]

_ELEMENTWISE = torch.Tag.pointwise
_KIB = 1024
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addbmm",
             "aten::mv", "aten::addmv", "aten::dot", "aten::vdot", "aten::_scaled_mm",
             "aten::_addmm_activation", "aten::_int_mm",
             "aten::addmm_", "aten::baddbmm_")  # fmt: skip
_rules: dict[tuple[Any, tuple[int, int], tuple[int, int]], Rule | None] = {}


def workspaces(
    func: Any, args: Any, kwargs: Any, out: Any, *, capability: tuple[int, int]
) -> tuple[Workspace, ...] | None:
    """Return what one call allocates beside its results; all of it is given back when it ends.

    Where a kernel takes buffers one after the other, those of its worst instant are returned. None:
    of such calls of its operator nobody knows.

    ``func``: the operator overload, dispatched with tensors on the card.
    """
    key = (func, capability, kernels.imitated().torch_version)
    try:
        rule = _rules[key]
    except KeyError:
        rule = _rules[key] = _find(*key)
    return () if rule is None else rule(Call(func, args, kwargs, out, capability))


def bound_bytes(
    func: Any, args: Any, kwargs: Any, out: Any, *, capability: tuple[int, int]
) -> int | None:
    """Return the most that a call may take of an operator whose row is a bound; None: unknown.

    ``func``: the operator overload, dispatched with tensors on the card.
    """
    rule = _find(func, capability, kernels.imitated().torch_version)
    found = None if rule is None else rule(Call(func, args, kwargs, out, capability))
    return None if found is None else total(found)


@cache
def is_known(func: Any) -> bool:
    """Tell whether the table, or one of its two rules, says what an operator allocates."""
    row = row_of(func)
    if row is not None:
        return row.rule != UNKNOWN
    return _ELEMENTWISE in func.tags or _is_view(func)


@cache
def row_of(func: Any) -> Row | None:
    """Return the row that speaks of an operator on any card, with its source; None if none does."""
    named = _rows_of(func)
    return named[0] if named else None


def _rows_of(func: Any) -> list[Row]:
    name = func._schema.name  # noqa: SLF001
    exact = [row for row in rows() if name in row.ops]
    if exact:
        return exact
    return [row for row in rows() if any(_begins(name, op) for op in row.ops)]


def _begins(name: str, op: str) -> bool:
    return op.endswith("*") and name.startswith(op[:-1])


def _find(func: Any, capability: tuple[int, int], torch_version: tuple[int, int]) -> Rule | None:
    for row in _rows_of(func):
        if row.covers(capability=capability, torch_version=torch_version):
            return None if row.rule in {OUTPUTS_ONLY, UNKNOWN} else RULES[row.rule]
    return None


def _is_view(func: Any) -> bool:
    """A result that aliases an argument which is not written to."""
    returns = [value.alias_info for value in func._schema.returns]  # noqa: SLF001
    return bool(returns) and all(alias is not None and not alias.is_write for alias in returns)


def uses_blas(func: Any) -> bool:
    """Tell whether an operator's first call on a thread and stream allocates cuBLAS's workspace."""
    return func._schema.name in _PRODUCTS  # noqa: SLF001


def uses_blas_lt(func: Any, args: Any) -> bool:
    """Tell whether a call goes to cuBLASLt, which has a workspace of its own beside cuBLAS's.

    A product with a bias row does (``addmm`` with a 1-D, contiguous bias; ``isInputCompliesAddmm\
CudaLt`` in Blas.cpp), a scaled product always.

    Args:
        func: The operator overload.
        args: Its positional arguments.
    """
    name = func._schema.name  # noqa: SLF001
    if name in {"aten::_scaled_mm", "aten::_addmm_activation"}:
        return True
    if name != "aten::addmm" or func._schema.overload_name:  # noqa: SLF001
        return False
    bias, left, right = args[:3]
    return (
        bias.dim() == 1
        and bias.is_contiguous()
        and bias.shape[0] == right.shape[1]
        and min(*left.shape, *right.shape) > 1
        and bias.dtype in {torch.float16, torch.bfloat16, torch.float32, torch.float64}
    )


def blas_workspace_bytes(capability: tuple[int, int]) -> int:
    """Return the workspace that every cuBLAS handle (one a thread) and stream keeps, in bytes.

    It is allocated at the first product, lives on, and is inside the allocator's counters.
    ``CUBLAS_WORKSPACE_CONFIG`` (``:KIB:COUNT``, more than once) is followed as PyTorch does.

    Source: ``aten/src/ATen/cuda/CublasHandlePool.cpp``, ``parseChosenWorkspaceSize``.
    """
    asked = re.findall(r":([0-9]+):([0-9]+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if asked:
        return sum(int(kib) * _KIB * int(count) for kib, count in asked)
    return libraries().cublas_bytes(capability, kernels.imitated().torch_version)


def blas_lt_workspace_bytes(capability: tuple[int, int]) -> int:
    """Return the workspace that cuBLASLt keeps for every handle and stream, in bytes.

    None where ``TORCH_CUBLASLT_UNIFIED_WORKSPACE=1`` has it share cuBLAS's.

    Source: ``aten/src/ATen/cuda/CublasHandlePool.cpp``, ``getCUDABlasLtWorkspace``.
    """
    if os.environ.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE") == "1":
        return 0
    asked = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
    num_bytes = int(asked) * _KIB if asked.isdecimal() else libraries().cublas_lt_bytes
    return min(num_bytes, blas_workspace_bytes(capability))
