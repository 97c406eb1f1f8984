"""What an operation costs: FLOPs of matrix products and attention, bytes moved by the rest.

Source of the FLOP formulas: ``torch.utils.flop_counter``. Attention is counted whole, as if no
query were masked; a causal kernel does about half of it.
"""

from math import prod
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

_GROUPED = torch.ops.aten._grouped_mm.default  # noqa: SLF001 - the operator has no other name
_STACKED_DIMS = 3
"""Of matrices, one for each group."""
PACKED_DIMS = 3
"""FlashAttention takes documents laid end to end without a dimension for sequences."""
LONGEST_QUERY = {False: 5, True: 8}
"""Where ``_flash_attention_forward`` and ``_flash_attention_backward`` take their length."""


Work = tuple[int, int, tuple[int, ...]]
"""Matrix FLOPs, attention FLOPs, bytes of each tensor moved."""


def work(func: Any, args: Any, kwargs: Any, out: Any) -> Work:
    """Return matrix FLOPs, attention FLOPs and the bytes of each tensor moved.

    Only one of the three is given: which one depends on the operation.

    ``out``: what it returned; of several tensors some may be None, as a gradient nobody needs.
    """
    name = func.overloadpacket.__name__
    if "attention" in name:
        return 0, _attention_flops(name, args), ()
    if func is _GROUPED:
        # FLOPs of a product of groups: every row of the tensor that is cut belongs to one of them.
        # [rows, K] x [groups, K, N], [M, rows] x [rows, N], [groups, M, K] x [K, columns], or both
        # stacked. The registry has none for it.
        a = args[0].shape
        b = args[1].shape
        stacked_by_flat = len(a) == _STACKED_DIMS > len(b)
        return int(2 * prod(a[1:] if stacked_by_flat else a) * b[-1]), 0, ()
    if func.overloadpacket in flop_registry:
        told = [x for x in args if not isinstance(x, torch.dtype)]  # the result's, of addmm
        flops = flop_registry[func.overloadpacket](*told, **kwargs, out_val=out)
        return int(flops), 0, ()
    moved = pytree.tree_leaves((args, kwargs, out))
    return 0, 0, tuple(_bytes(x) for x in moved if isinstance(x, torch.Tensor))


def row_of(name: str, args: Any) -> tuple[int, int]:
    """Return how many tokens an attention's longest row has, and how wide a head is."""
    *_, tokens, head = args[0].shape
    is_packed = args[0].dim() == PACKED_DIMS
    return args[LONGEST_QUERY["backward" in name]] if is_packed else tokens, head


def _attention_flops(name: str, args: Any) -> int:
    backward = "backward" in name
    shapes = [x.shape for x in args[: backward + 3]]
    if len(shapes[-1]) == PACKED_DIMS:
        shapes = [_unpacked(shape, args[LONGEST_QUERY[backward]]) for shape in shapes]
    query, key, value = shapes[-3:]
    key, value = _ungrouped(key, query), _ungrouped(value, query)
    if backward:
        return int(sdpa_backward_flop_count(shapes[0], query, key, value))
    return int(sdpa_flop_count(query, key, value))


def _unpacked(shape: torch.Size, longest: int) -> torch.Size:
    """Return [sequences, heads, tokens, width] of [tokens, heads, width], cut into longest ones."""
    tokens, heads, width = shape
    return torch.Size((-(-tokens // longest), heads, longest, width))


def _ungrouped(shape: torch.Size, query: torch.Size) -> torch.Size:
    return torch.Size((shape[0], query[1], *shape[2:]))


def _bytes(x: torch.Tensor) -> int:
    """Bytes that an elementwise kernel touches: broadcast (stride 0) dimensions count once."""
    touched = int(x.element_size())
    for size, stride in zip(x.shape, x.stride(), strict=True):
        touched *= size if stride else 1
    return touched
