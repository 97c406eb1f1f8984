"""What attention kernels allocate for themselves.

Shapes: B batch, H query heads, G key heads, M queries, N keys, K head dimension, V that of values.
"""

import math
from typing import NamedTuple

import numpy as np
import torch

from brimful.pretend import kernels
from brimful.pretend.workspace_call import (
    FLOAT_BYTES,
    MEASURED,
    Call,
    Workspaces,
    ceil_div,
    copied,
    is_deterministic,
    largest,
    round_up,
    size,
)

FLASH_TOKENS = 128
"""Rows that FlashAttention-2's backward pads the queries to."""
FLASH_SPLIT_ROWS = 64
FLASH_MAX_SPLITS = 128
FLASH_FULL, FLASH_EFFICIENT = 0.8, 0.85
"""Share of the multiprocessors that need no splitting, and of the best efficiency that will do."""
MAX_SPLITS_IN_FLIGHT = 200
"""kernel_backward.h, ``num_splits_key``: at most this many staging areas in all."""
LARGE_SHARED_MEMORY = ((8, 0), (8, 7), (9, 0), (10, 0), (10, 3))
"""Capabilities with at least 163 KiB of shared memory per block: 128 x 128 tiles fit."""


class FlashShape(NamedTuple):
    """Sizes of a call of FlashAttention-2; of packed sequences M and N are totals."""

    batch: int
    queries: int
    heads: int
    head_dim: int
    keys: int
    key_heads: int
    packed: bool


def rounded_head_dim(head_dim: int) -> int:
    """``head_size_rounded`` of flash_api.cpp: to 32 up to 128, to 64 above."""
    return round_up(head_dim, 32 if head_dim <= FLASH_TOKENS else 64)


def sdpa_flash_backward(call: Call) -> Workspaces:
    """``_scaled_dot_product_flash_attention_backward``: tensors are [B, H, M, K]."""
    grad, query, key, out = (call.arg(name) for name in ("grad_out", "query", "key", "out"))
    batch, heads, queries, head_dim = query.shape
    shape = FlashShape(batch, queries, heads, head_dim, key.shape[2], key.shape[1], packed=False)
    copies = (grad.transpose(1, 2), out.transpose(1, 2))
    return _flash_backward(shape, query.element_size(), *copies)


def flash_backward(call: Call) -> Workspaces:
    """``_flash_attention_backward``: [B, M, H, K], or packed [M, H, K] with offsets."""
    grad, query, key, out, offsets = (
        call.arg(name) for name in ("grad_out", "query", "key", "out", "cum_seq_q")
    )
    packed = query.dim() == 3  # noqa: PLR2004 - [tokens, heads, head_dim]
    *lead, heads, head_dim = query.shape
    batch, queries = (offsets.numel() - 1, lead[0]) if packed else lead
    shape = FlashShape(batch, queries, heads, head_dim, key.shape[-3], key.shape[-2], packed)
    return _flash_backward(shape, query.element_size(), grad, out)


def _flash_backward(
    shape: FlashShape, element: int, grad: torch.Tensor, out: torch.Tensor
) -> Workspaces:
    """Buffers of ``mha_bwd`` and ``mha_varlen_bwd`` in flash_api.cpp.

    dq is added up in fp32; with grouped heads dk and dv are first made for every query head. A
    deterministic run keeps one dq for every split of the multiprocessors.
    """
    if shape.packed:
        rows = shape.queries + FLASH_TOKENS * shape.batch
    else:
        rows = shape.batch * round_up(shape.queries, FLASH_TOKENS)
    sums = rows * shape.heads * FLOAT_BYTES
    splits = 1
    if is_deterministic():
        splits = ceil_div(kernels.imitated().chip.num_multiprocessors, shape.batch * shape.heads)
    key_rows = shape.keys if shape.packed else shape.batch * shape.keys
    expanded = key_rows * shape.heads * shape.head_dim * element
    grouped = shape.key_heads != shape.heads
    return (
        *copied(grad, "contiguous copy of the gradient of the output"),
        *copied(out, "contiguous copy of the output"),
        *size(sums, "softmax_d, fp32 row sums"),
        *size(splits * sums * rounded_head_dim(shape.head_dim), "dq_accum, fp32"),
        *(size(expanded, "dk of every query head") if grouped else ()),
        *(size(expanded, "dv of every query head") if grouped else ()),
    )


def sdpa_flash_forward(call: Call) -> Workspaces:
    """``_scaled_dot_product_flash_attention``: tensors are [B, H, M, K]."""
    query, key = (call.arg(name).shape for name in ("query", "key"))
    batch, heads, queries, head_dim = query
    shape = FlashShape(batch, queries, heads, head_dim, key[2], key[1], packed=False)
    return _flash_forward(shape, dropout=call.arg("dropout_p"))


def flash_forward(call: Call) -> Workspaces:
    """``_flash_attention_forward``: [B, M, H, K], or packed [M, H, K], of which it splits none.

    But for texts of one token, as they are written (``seqlenq_ngroups_swapped``).
    """
    query, key = (call.arg(name).shape for name in ("query", "key"))
    *lead, heads, head_dim = query
    packed = len(query) == 3  # noqa: PLR2004 - [tokens, heads, head_dim]
    if packed and call.arg("max_q") > 1:
        return ()
    batch, queries = (lead[0], 1) if packed else lead
    keys = call.arg("max_k") if packed else key[1]
    shape = FlashShape(batch, queries, heads, head_dim, keys, key[-2], packed)
    return _flash_forward(shape, dropout=call.arg("dropout_p"))


def _flash_forward(shape: FlashShape, *, dropout: float) -> Workspaces:
    """Return partial outputs where keys are split.

    A small batch does not fill the card, so the keys are split (``set_params_splitkv``).
    """
    if dropout:
        return ()
    batch, queries, heads, head_dim = shape[:4]
    if queries == 1 and heads > shape.key_heads:  # groups take the place of queries
        queries, heads = heads // shape.key_heads, shape.key_heads
    block = 256 if head_dim <= 64 else 128 if head_dim <= FLASH_TOKENS else 64  # noqa: PLR2004
    splits = num_splits(
        batch * heads * ceil_div(queries, FLASH_SPLIT_ROWS),
        kernels.imitated().chip.num_multiprocessors * 2,
        ceil_div(shape.keys, block),
    )
    if splits == 1:
        return ()
    rows = splits * batch * heads * queries * FLOAT_BYTES
    return (
        *size(rows, "softmax_lse_accum of split keys"),
        *size(rows * rounded_head_dim(head_dim), "out_accum of split keys"),
    )


def num_splits(blocks: int, multiprocessors: int, key_blocks: int) -> int:
    """``num_splits_heuristic`` of flash_api.cpp."""
    if blocks >= FLASH_FULL * multiprocessors:
        return 1
    efficiencies: dict[int, float] = {}
    for splits in range(1, min(FLASH_MAX_SPLITS, multiprocessors, key_blocks) + 1):
        if splits > 1 and ceil_div(key_blocks, splits) == ceil_div(key_blocks, splits - 1):
            continue
        waves = np.float32(blocks * splits) / np.float32(multiprocessors)
        efficiencies[splits] = float(waves / np.float32(math.ceil(waves)))
    enough = FLASH_EFFICIENT * max(efficiencies.values())
    return next(splits for splits, value in efficiencies.items() if value >= enough)


def efficient_forward(call: Call) -> Workspaces:
    """``_scaled_dot_product_efficient_attention``: an fp32 output where it is not in registers.

    Kernels keep the output in registers up to a head dimension of 128 (kernel_forward.h,
    ``kNeedsOutputAccumulatorBuffer``); fp32 outputs serve as their own accumulator.
    """
    query, value = call.arg("query"), call.arg("value")
    if query.dtype == torch.float32 or max(query.shape[-1], value.shape[-1]) <= 128:  # noqa: PLR2004
        return ()
    batch, heads, queries = query.shape[:3]
    accumulated = batch * heads * queries * value.shape[-1] * FLOAT_BYTES
    return size(accumulated, "output_accum, fp32")


class _Tile(NamedTuple):
    queries: int
    keys: int
    max_head_dim: int


def _tile(head_dim: int, capability: tuple[int, int], *, half: bool, dropout: bool) -> _Tile:
    """The first kernel of cutlassB.h that takes this head dimension and fits."""
    if head_dim <= 64:  # noqa: PLR2004
        return _Tile(64, 64, 32 if head_dim <= 32 else 64)  # noqa: PLR2004
    large = capability in LARGE_SHARED_MEMORY
    if head_dim <= 96 and half and capability in {(8, 6), (8, 9)} and not dropout:  # noqa: PLR2004
        return _Tile(128, 64, 96)
    if head_dim <= 128:  # noqa: PLR2004
        if large:
            return _Tile(128, 128 if half else 64, 128)
        return _Tile(64, 64, 128)
    return _Tile(128 if large else 64, 64, 65536)


def efficient_backward(call: Call) -> Workspaces:
    """``_scaled_dot_product_efficient_attention_backward``: delta and the gradients' workspace.

    Half precision: the kernel makes delta itself. Otherwise delta is the row sum of a product as
    large as the output in fp32, which is given back before the workspace is taken.
    """
    grad, query, key, value, out, dropout = (
        call.arg(name) for name in ("grad_out_", "query", "key", "value", "out", "dropout_p")
    )
    batch, heads, queries, head_dim = query.shape
    half = query.dtype != torch.float32
    widest = max(head_dim, value.shape[-1])
    tile = _tile(widest, call.capability, half=half, dropout=dropout > 0)
    in_registers = half and tile.max_head_dim <= tile.queries
    copies = copied(grad.transpose(1, 2), "contiguous copy of the gradient of the output")
    delta = size(batch * heads * queries * FLOAT_BYTES, "delta, fp32 row sums")
    workspace = size(_workspace_bytes(query, key, value, tile, in_registers), "gradients in fp32")
    by_kernel = half and (in_registers or not (7, 0) <= call.capability < (7, 5))
    if by_kernel:
        return (*copies, *delta, *workspace)
    widened = size(out.numel() * FLOAT_BYTES if half else 0, "gradient or output in fp32")
    product = size(out.numel() * FLOAT_BYTES, "gradient times output, fp32")
    return (
        *copies,
        *largest((*widened, *widened, *product), (*product, *delta), (*delta, *workspace)),
    )


def _workspace_bytes(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    tile: _Tile,
    in_registers: bool,  # noqa: FBT001
) -> int:
    """``Params::workspace_size`` of kernel_backward.h.

    dq is staged in tiles of fp32 with a lock of 16 bytes each. dk and dv are staged where a kernel
    of half precision does not hold them in registers, once for every split of the keys.
    """
    batch, heads, queries, head_dim = query.shape
    num_keys = key.shape[2]
    blocks = ceil_div(queries, tile.queries) * ceil_div(head_dim, tile.keys)
    elements = blocks * (4 + tile.queries * tile.keys)
    if query.dtype != torch.float32 and not in_registers:
        splits = ceil_div(num_keys, tile.keys)
        if batch * heads >= 256 and num_keys <= 2 * tile.keys:  # noqa: PLR2004
            splits = 1
        splits = max(1, min(splits, MAX_SPLITS_IN_FLIGHT // (batch * heads)))
        if is_deterministic():
            splits = 1
        widths = (round_up(dim, tile.queries) for dim in (head_dim, value.shape[-1]))
        elements += splits * tile.keys * sum(widths)
    return int(batch * heads) * round_up(elements, 4) * FLOAT_BYTES


CUDNN_SCRATCH_BYTES = 256
"""Of every plan of cuDNN's attention, measured on an H200 (cuDNN 9.19)."""


def cudnn_forward(call: Call) -> Workspaces | None:
    """``_scaled_dot_product_cudnn_attention``: a constant."""
    if call.capability != MEASURED:
        return None
    return size(CUDNN_SCRATCH_BYTES, "scratch of cuDNN's plan")


def cudnn_backward(call: Call) -> Workspaces | None:
    """``_scaled_dot_product_cudnn_attention_backward``: sums of rows, dq, and dk and dv unreduced.

    ``softmax_sum`` and ``dQ_accum`` in fp32; with grouped heads ``dK_fullhead`` and ``dV_fullhead``
    of every query head. To the byte on an H200 for 43 shapes. A deterministic plan keeps scores
    too, which nobody measured.
    """
    if call.capability != MEASURED or is_deterministic():
        return None
    grad, query, key, value = (call.arg(name) for name in ("grad_out", "query", "key", "value"))
    batch, heads, queries, head_dim = query.shape
    num_rows = batch * heads * queries
    full = sum(
        batch * heads * x.shape[2] * x.shape[3] * x.element_size()
        for x in (key, value)
        if x.shape[1] != heads
    )
    copies = grad.numel() * grad.element_size() if grad.stride(-1) != 1 else 0
    plan = num_rows * (1 + head_dim) * FLOAT_BYTES + full + CUDNN_SCRATCH_BYTES
    return (
        *size(copies, "contiguous copy of the gradient of the output"),
        *size(plan, "row sums, dq in fp32, dk and dv of every query head"),
    )
