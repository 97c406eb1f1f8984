"""Which attention kernel ``scaled_dot_product_attention`` would pick, and so what is saved.

The pick follows ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` and
``aten/src/ATen/native/transformers/attention.cpp`` for what training sends: no dropout, a causal
flag instead of a mask. Whatever is outside that goes to the math formula, as in PyTorch.
"""

from typing import Any

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
    choice = choose(query, attn_mask, dropout_p)
    if choice == "cpu-flash":
        return _cpu_flash(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if choice == "flash":
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if choice == "efficient":
        return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    return _math(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _repeat_kv(x: torch.Tensor, query: torch.Tensor, enable_gqa: bool) -> torch.Tensor:  # noqa: FBT001
    groups = query.shape[1] // x.shape[1]
    return x.repeat_interleave(groups, 1) if enable_gqa and groups > 1 else x


def _cpu_flash(  # noqa: PLR0913, PLR0917 - as above
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    dropout_p: Any,
    is_causal: Any,
    scale: Any,
    gqa: Any,
) -> torch.Tensor:
    del gqa  # the CPU kernel indexes grouped heads itself
    out = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001
        query, key, value, dropout_p, is_causal, attn_mask=mask, scale=scale
    )
    return out[0]


def _flash(  # noqa: PLR0913, PLR0917 - as above
    query: Any, key: Any, value: Any, dropout_p: Any, is_causal: Any, scale: Any
) -> torch.Tensor:
    head_dim = query.shape[-1]
    pad = -head_dim % FLASH_HEAD_DIM_MULTIPLE
    scale = head_dim**-0.5 if scale is None else scale
    if pad:
        query, key, value = (torch.nn.functional.pad(x, (0, pad)) for x in (query, key, value))
    out = torch.ops.aten._scaled_dot_product_flash_attention(  # noqa: SLF001
        query, key, value, dropout_p, is_causal, scale=scale
    )[0]
    return out[..., :head_dim] if pad else out


def _efficient(  # noqa: PLR0913, PLR0917 - as above
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    dropout_p: Any,
    is_causal: Any,
    scale: Any,
    gqa: Any,
) -> torch.Tensor:
    key, value = _repeat_kv(key, query, gqa), _repeat_kv(value, query, gqa)
    out = torch.ops.aten._scaled_dot_product_efficient_attention(  # noqa: SLF001
        query, key, value, mask, torch.is_grad_enabled(), dropout_p, is_causal, scale=scale
    )
    return out[0]


def _math(  # noqa: PLR0913, PLR0917 - as above
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    dropout_p: Any,
    is_causal: Any,
    scale: Any,
    gqa: Any,
) -> torch.Tensor:
    out = torch.ops.aten._scaled_dot_product_attention_math(  # noqa: SLF001
        query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=gqa
    )
    return out[0]
