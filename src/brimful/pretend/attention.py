"""Attention as the imitated device would compute it, and so what it allocates and saves.

Which kernel is taken is decided by ``attention_choice``. What surrounds the kernel (padding of
heads and masks, a boolean mask made into numbers, fp32 copies of the written-out formula) is done
here by the operations that PyTorch itself does it with, so that the tape sees their bytes
(``aten/src/ATen/native/transformers/attention.cpp``).
"""

import math
from collections.abc import Callable

import torch
from torch.nn.attention import flex_attention

from brimful.errors import UnsupportedError
from brimful.pretend.attention_choice import HEAD_DIM_MULTIPLE, Attention, Choice, choose
from brimful.pretend.libraries import library

__all__ = ["Attention", "Choice", "choose", "on_choice", "register", "scaled_dot_product_attention"]

MASK_MULTIPLE = 8
"""Elements that rows of a mask must be a multiple of for the memory-efficient kernel."""
_validates_flex = flex_attention._validate_device  # noqa: SLF001
on_choice: list[Callable[[Choice], None]] = []
"""Called with every choice, so that a report can show it."""


def register() -> None:
    """Install this as the pretend GPU's ``scaled_dot_product_attention``."""
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        library(key).impl("scaled_dot_product_attention", scaled_dot_product_attention)
    flex_attention._validate_device = _without_flex(_validates_flex)  # noqa: SLF001


def compiled_flex() -> tuple[object, str, object]:
    """Return what PyTorch checks of FlexAttention, for compiled functions: these may call it."""
    return flex_attention, "_validate_device", _validates_flex


def _without_flex(validate: Callable[..., None]) -> Callable[..., None]:
    """Refuse uncompiled FlexAttention on the pretend GPU, which PyTorch's own check calls unknown.

    What it does uncompiled is not what anybody trains with; compiled, it allocates what Inductor's
    code does. Block masks are plain tensors: making one on the pretend GPU shows its bytes.
    """

    def check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        # Not by its name, which may be cuda.
        keys = torch._C._dispatch_keys(query)  # noqa: SLF001
        if keys.has(torch._C.DispatchKey.PrivateUse1):  # noqa: SLF001
            raise UnsupportedError(
                "FlexAttention that is not compiled is not simulated: it holds the scores of all "
                "pairs of tokens, as no training does; use scaled_dot_product_attention "
                "(transformers: attn_implementation='sdpa'), or run a program that compiles it by "
                "brimful pretend",
                nearest={"attention": "sdpa"},
            )
        validate(query, key, value)

    return check


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

    ``query``: [batch, heads, tokens, head_dim]. ``key``: [batch, kv_heads, tokens, head_dim].
    ``value``: [batch, kv_heads, tokens, head_dim]. ``attn_mask``: Additive or boolean mask, or
    None. ``is_causal``: whether a causal mask is implied. ``scale``: factor on the scores; None
    means 1 / sqrt(head_dim). ``enable_gqa``: whether kv_heads may be a divisor of heads. Returns
    [batch, heads, tokens, head_dim].
    """
    call = Attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    choice = choose(call)
    for hook in on_choice:
        hook(choice)
    return _KERNELS[choice.kernel](call)


def _cpu_flash(call: Attention) -> torch.Tensor:
    # The CPU kernel indexes grouped heads itself.
    out: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001
        *call[:3], call.dropout_p, call.is_causal, attn_mask=_additive(call), scale=call.scale
    )[0]
    return out


def _flash(call: Attention) -> torch.Tensor:
    # The kernel indexes grouped heads itself.
    head_dim = call.query.shape[-1]
    pad = -head_dim % HEAD_DIM_MULTIPLE
    scale = head_dim**-0.5 if call.scale is None else call.scale
    qkv = [torch.nn.functional.pad(x, (0, pad)) if pad else x for x in call[:3]]
    out: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention(  # noqa: SLF001
        *qkv, call.dropout_p, call.is_causal, scale=scale
    )[0]
    return out[..., :head_dim] if pad else out


def _efficient(call: Attention) -> torch.Tensor:
    mask = _additive(call)
    if mask is not None:
        rows = (*call.query.shape[:3], call.key.shape[2])
        mask = _aligned(mask).expand(rows)
    out: torch.Tensor = torch.ops.aten._scaled_dot_product_efficient_attention(  # noqa: SLF001
        *call[:3], mask, call.needs_grad, call.dropout_p, call.is_causal, scale=call.scale
    )[0]
    return out


def _cudnn(call: Attention) -> torch.Tensor:
    out: torch.Tensor = torch.ops.aten._scaled_dot_product_cudnn_attention(  # noqa: SLF001
        *call[:3],
        _additive(call),
        call.needs_grad,
        call.dropout_p,
        call.is_causal,
        False,
        scale=call.scale,
    )[0]
    return out


def _math(call: Attention) -> torch.Tensor:
    out: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math(  # noqa: SLF001
        *call[:3],
        _additive(call),
        call.dropout_p,
        call.is_causal,
        scale=call.scale,
        enable_gqa=call.gqa,
    )[0]
    return out


def _additive(call: Attention) -> torch.Tensor | None:
    """``convert_boolean_attn_mask``: a boolean mask as zeros and minus infinities."""
    mask = call.mask
    if mask is None or mask.dtype != torch.bool:
        return mask
    hidden = torch.scalar_tensor(-math.inf, dtype=call.query.dtype, device=mask.device)
    return torch.where(mask, 0.0, hidden)


def _aligned(mask: torch.Tensor) -> torch.Tensor:
    """``preprocess_mask``: a padded copy where a row does not begin at a multiple of 8."""
    if mask.stride(-1) == 1 and not any(step % MASK_MULTIPLE for step in mask.stride()[:-1]):
        return mask
    length = mask.shape[-1]
    pad = MASK_MULTIPLE - length % MASK_MULTIPLE
    return torch.nn.functional.pad(mask, (0, pad))[..., :length]


_KERNELS = {
    "cpu-flash": _cpu_flash, "flash": _flash, "efficient": _efficient, "cudnn": _cudnn,
    "math": _math,
}  # fmt: skip
