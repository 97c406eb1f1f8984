"""The attention of the flash-attn package, version 2.6, by what it allocates.

Its kernels exist for real GPUs only. The function here makes the same tensors in the same order
and keeps the same ones for the backward pass; nothing is computed on a pretend GPU anyway.

Shapes: B batch, S tokens, H heads, K key-value heads, E head width.

Source: ``flash_attn/flash_attn_interface.py`` (``FlashAttnFunc``) and
``csrc/flash_attn/flash_api.cpp`` (``mha_fwd``, ``mha_bwd``) of Dao-AILab/flash-attention.
"""

from typing import Any

import torch
from torch import Tensor

ROWS = 128
"""Tokens are rounded up to a multiple of it in the kernel's own tensors."""
HEAD = 32
"""Head widths likewise."""


class FlashAttention2(torch.autograd.Function):  # type: ignore[misc]
    """Causal attention of [B, S, H, E] to [B, S, K, E]."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        """Return [B, S, H, E] and keep it, its inputs and the log-sum-exp of each row."""
        batch, num_tokens, num_heads, _ = query.shape
        out = torch.empty_like(query)
        log_sums = query.new_empty((batch, num_heads, num_tokens), dtype=torch.float32)
        rng_state = query.new_empty((2,), dtype=torch.int64)
        ctx.save_for_backward(query, key, value, out, log_sums, rng_state)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Return the gradients, summed in fp32 for dq and per query head for dk and dv."""
        query, key, value, _, _, _ = ctx.saved_tensors
        batch, num_tokens, num_heads, head_width = query.shape
        grads = [torch.empty_like(x) for x in (query, key, value)]
        grad = grad.contiguous() if grad.stride(-1) != 1 else grad
        padded_tokens = -(-num_tokens // ROWS) * ROWS
        padded_width = -(-head_width // HEAD) * HEAD
        wide = {"dtype": torch.float32}
        softmax_d = query.new_empty((batch, num_heads, padded_tokens), **wide)
        dq_sums = query.new_empty((batch, padded_tokens, num_heads, padded_width), **wide)
        whole = []
        if key.shape[2] != num_heads:
            shape = (batch, key.shape[1], num_heads, head_width)
            whole = [query.new_empty(shape) for _ in range(2)]
        del softmax_d, dq_sums, whole
        return tuple(grads)


def flash_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend causally, without dropout.

    Args:
        query: Queries.
        key: Keys; K divides H.
        value: Values.
    """
    out: Tensor = FlashAttention2.apply(query, key, value)
    return out
