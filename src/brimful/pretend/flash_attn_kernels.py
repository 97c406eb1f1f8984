"""What flash-attn's kernels allocate, forward and backward.

Followed: flash-attn 2.8.3, ``csrc/flash_attn/flash_api.cpp`` (``mha_fwd``, ``mha_varlen_fwd``,
``mha_bwd``, ``mha_varlen_bwd``, ``set_params_splitkv``).

Shapes: B batch, M queries, H heads, K head dimension; packed sequences have no B and one M of all.
"""

from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad

from brimful.pretend import device
from brimful.pretend.workspace_attention import (
    FLASH_SPLIT_ROWS,
    FLASH_TOKENS,
    num_splits,
    rounded_head_dim,
)
from brimful.pretend.workspace_call import ceil_div, round_up

_MULTIPLE = 8
"""Of the head dimension that kernels take; others are padded."""


class How(NamedTuple):
    """What a call is told beside tensors of queries, keys and values.

    Attributes:
        parts: How these come: ``q k v``, ``q kv`` or ``qkv``.
        offsets: Where sequences begin among the queries and among the keys; empty: nothing is
            packed.
        longest: The longest sequence of queries and of keys, of packed ones.
        dropout: The probability.
        deterministic: Whether backward adds up in a fixed order.
        wants_scores: Whether weights are returned, for tests.
    """

    parts: str
    offsets: tuple[torch.Tensor, ...]
    longest: tuple[int, int]
    dropout: float
    deterministic: bool
    wants_scores: bool

    @property
    def num_sequences(self) -> int:
        """Of packed ones."""
        return int(self.offsets[0].numel()) - 1


def apart(given: tuple[torch.Tensor, ...], parts: str) -> tuple[torch.Tensor, ...]:
    """Return queries, keys and values."""
    if parts == "q k v":
        return given
    *first, together = given
    return (*first, *together.unbind(-3))


def padded(x: torch.Tensor) -> torch.Tensor:
    """Return it with a head dimension that kernels take."""
    extra = -x.shape[-1] % _MULTIPLE
    return pad(x, [0, extra]) if extra else x


def dense(x: torch.Tensor) -> torch.Tensor:
    """Return it, or a copy where its last dimension is not dense."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _split_keys(q: torch.Tensor, k: torch.Tensor, how: How) -> list[torch.Tensor]:
    """Partial results where few queries do not fill the card; ``set_params_splitkv``."""
    if how.offsets or how.dropout > 0:
        return []
    batch, queries, heads, head_dim = q.shape
    block = 256 if head_dim <= 64 else 128 if head_dim <= FLASH_TOKENS else 64  # noqa: PLR2004
    splits = num_splits(
        batch * heads * ceil_div(queries, FLASH_SPLIT_ROWS),
        device.card().multi_processor_count * 2,
        ceil_div(k.shape[1], block),
    )
    if splits == 1:
        return []
    rows = (splits, batch, heads, queries)
    return [_fp32(q, *rows), _fp32(q, *rows, rounded_head_dim(head_dim))]


def _fp32(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def kernel_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, how: How) -> tuple[Any, ...]:
    """Return output, logsumexp, weights and the state of random numbers; ``mha_fwd``."""
    q, k, v = map(dense, (q, k, v))
    out = torch.empty_like(q)
    heads = q.shape[-2]
    lse = _fp32(q, heads, q.shape[0]) if how.offsets else _fp32(q, q.shape[0], heads, q.shape[1])
    scores = torch.empty(0, dtype=q.dtype, device=q.device)
    if how.wants_scores and how.dropout > 0:
        batch = how.num_sequences if how.offsets else q.shape[0]
        longest = how.longest if how.offsets else (q.shape[1], k.shape[1])
        sides = (round_up(each, FLASH_TOKENS) for each in longest)
        scores = torch.empty((batch, heads, *sides), dtype=q.dtype, device=q.device)
    partial = _split_keys(q, k, how)
    del partial
    return out, lse, scores, torch.empty(2, dtype=torch.int64, device=q.device)


def kernel_backward(
    dout: torch.Tensor,
    saved: tuple[torch.Tensor, ...],
    gradients: tuple[torch.Tensor, ...],
    how: How,
) -> None:
    """Allocate what ``mha_bwd`` and ``mha_varlen_bwd`` do, and add up grouped heads."""
    dout, q, k, v, out = map(dense, (dout, *saved))
    heads, head_dim = q.shape[-2:]
    batch = how.num_sequences if how.offsets else q.shape[0]
    shape: tuple[int, ...]
    if how.offsets:
        rows = q.shape[0] + FLASH_TOKENS * batch
        shape, sums = (rows, heads), _fp32(q, heads, rows)
    else:
        rows = round_up(q.shape[1], FLASH_TOKENS)
        shape, sums = (batch, rows, heads), _fp32(q, batch, heads, rows)
    splits = ceil_div(device.card().multi_processor_count, batch * heads)
    each = (splits,) if how.deterministic else ()
    dq_sum = _fp32(q, *each, *shape, rounded_head_dim(head_dim))
    if k.shape[-2] != heads:
        group = heads // k.shape[-2]
        wide = (*k.shape[:-2], heads, head_dim)
        expanded = [torch.empty(wide, dtype=q.dtype, device=q.device) for _ in "kv"]
        for x, gradient in zip(expanded, gradients[1:], strict=True):
            torch.sum(x.view(*k.shape[:-1], group, head_dim), -2, out=gradient)
    del sums, dq_sum, v, out
