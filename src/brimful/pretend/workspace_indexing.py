"""What indexing, counting and sorting allocate, in the cases in which that needs no cub.

Of all others nobody knows here: cub says at run time what it takes.
"""

import torch

from brimful.pretend.workspace_call import Call, Workspaces, copied, is_deterministic, size
from brimful.pretend.workspace_reductions import partial_sums, reduced_dims

_MASKS = (torch.bool, torch.uint8)
_INDEX_BYTES = 8
SMALL_SORT = 1024
"""Elements along the dimension up to which every version sorts in place (``should_use_small_sort``:
4,096 today)."""
ONE_BLOCK = 400
"""Elements below which one block of threads finds the largest of a row, however many rows there are
(``should_use_multiblock``)."""


def index_put(call: Call) -> Workspaces | None:
    """``index_put``: one mask and one value are a ``masked_fill``; places are written as they are.

    With accumulation, and where algorithms are to be deterministic, places are sorted; masks with
    more than one value become places first.
    """
    indices = [index for index in call.arg("indices") if index is not None]
    are_masks = [index.dtype in _MASKS for index in indices]
    if call.arg("accumulate"):
        return None
    if any(are_masks):
        return () if len(indices) == 1 and call.arg("values").numel() == 1 else None
    return None if is_deterministic() else _alike(indices)


def _alike(indices: list[torch.Tensor]) -> Workspaces:
    """Several indices whose strides differ are copied (``AdvancedIndex`` of IndexingUtils)."""
    if len({index.stride() for index in indices}) < 2:  # noqa: PLR2004 - differ
        return ()
    return tuple(w for index in indices for w in copied(index, "contiguous copy of an index"))


def counted(call: Call) -> Workspaces:
    """``count_nonzero``: a mask of what is not zero, and its sum, which reads it as int64."""
    x = call.arg("self")
    mask = size(x.numel() if x.dtype != torch.bool else 0, "mask of what is not zero")
    widened = size(x.numel() * _INDEX_BYTES, "the mask in the type of the result")
    return (*mask, *widened, *partial_sums(x, reduced_dims(call), _INDEX_BYTES, 4))


def small_sort(call: Call) -> Workspaces | None:
    """``sort``, ``argsort``: short rows are sorted where the results lie; their places are made."""
    x = call.arg("self")
    length = x.shape[call.arg("dim")] if x.dim() else 1
    return size(length * _INDEX_BYTES, "places of a row") if length <= SMALL_SORT else None


def small_topk(call: Call) -> Workspaces | None:
    """``topk``: of short rows a contiguous input; results are sorted in place."""
    x = call.arg("self")
    length = x.shape[call.arg("dim")] if x.dim() else 1
    return copied(x, "contiguous copy of the input") if length < ONE_BLOCK else None
