"""Which attention kernel ``scaled_dot_product_attention`` would pick, and so what is saved.

The pick follows ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` and
``aten/src/ATen/native/transformers/attention.cpp`` for what training sends: no dropout, a causal
flag instead of a mask. On CUDA what flash cannot take (fp32, a mask, wide heads) goes to the
memory-efficient kernel; on a CPU what its fused kernel cannot take (dropout) to the written-out
formula.
"""

from typing import NamedTuple

import torch

from brimful.pretend import kernels
from brimful.pretend.libraries import library

FLASH_MAX_HEAD_DIM = 256
FLASH_HEAD_DIM_MULTIPLE = 8
_HALF = (torch.float16, torch.bfloat16)


def register() -> None:
    """Install the choice as the pretend GPU's ``scaled_dot_product_attention``."""
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        library(key).impl("scaled_dot_product_attention", scaled_dot_product_attention)


def choose(query: torch.Tensor, attn_mask: torch.Tensor | None, dropout_p: float) -> str:
    """Name the kernel: ``cpu-flash``, ``flash``, ``efficient`` or ``math``.

    Args:
        query: [batch, heads, tokens, head_dim].
        attn_mask: The mask, or None.
        dropout_p: Dropout probability.
    """
    if kernels.current() == "cpu":
        return "math" if dropout_p > 0 else "cpu-flash"
    head_dim = query.shape[-1]
    flash = query.dtype in _HALF and attn_mask is None and head_dim <= FLASH_MAX_HEAD_DIM
    return "flash" if flash else "efficient"


def scaled_dot_product_attention(  # noqa: PLR0913, PLR0917 - the signature is PyTorch's
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attend as the chosen kernel would, for its allocations; see torch's function of this name.

    Args:
        query: [batch, heads, tokens, head_dim].
        key: [batch, kv_heads, tokens, head_dim].
        value: [batch, kv_heads, tokens, head_dim].
        attn_mask: Additive or boolean mask, or None.
        dropout_p: Dropout probability.
        is_causal: Whether a causal mask is implied.
        scale: Factor on the scores; None means 1 / sqrt(head_dim).
        enable_gqa: Whether kv_heads may be a divisor of heads.

    Returns:
        [batch, heads, tokens, head_dim].
    """
    call = _Call(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    return _KERNELS[choose(query, attn_mask, dropout_p)](call)


class _Call(NamedTuple):
    """The arguments of one call, as ``scaled_dot_product_attention`` got them."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout_p: float
    is_causal: bool
    scale: float | None
    gqa: bool


def _cpu_flash(call: _Call) -> torch.Tensor:
    # The CPU kernel indexes grouped heads itself.
    out: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001
        *call[:3], call.dropout_p, call.is_causal, attn_mask=call.mask, scale=call.scale
    )[0]
    return out


def _flash(call: _Call) -> torch.Tensor:
    head_dim = call.query.shape[-1]
    pad = -head_dim % FLASH_HEAD_DIM_MULTIPLE
    scale = head_dim**-0.5 if call.scale is None else call.scale
    qkv = [torch.nn.functional.pad(x, (0, pad)) if pad else x for x in call[:3]]
    out: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention(  # noqa: SLF001
        *qkv, call.dropout_p, call.is_causal, scale=scale
    )[0]
    return out[..., :head_dim] if pad else out


def _efficient(call: _Call) -> torch.Tensor:
    key, value = (_repeat_heads(x, call) for x in (call.key, call.value))
    keeps = torch.is_grad_enabled()
    out: torch.Tensor = torch.ops.aten._scaled_dot_product_efficient_attention(  # noqa: SLF001
        call.query, key, value, call.mask, keeps, call.dropout_p, call.is_causal, scale=call.scale
    )[0]
    return out


def _math(call: _Call) -> torch.Tensor:
    out: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math(  # noqa: SLF001
        *call[:4], call.dropout_p, call.is_causal, scale=call.scale, enable_gqa=call.gqa
    )[0]
    return out


def _repeat_heads(x: torch.Tensor, call: _Call) -> torch.Tensor:
    groups = call.query.shape[1] // x.shape[1]
    return x.repeat_interleave(groups, 1) if call.gqa and groups > 1 else x


_KERNELS = {"cpu-flash": _cpu_flash, "flash": _flash, "efficient": _efficient, "math": _math}
