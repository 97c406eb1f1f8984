"""PyTorch's own fused attention: the device's choice, or pinned to one of its kernels.

Shapes: B batch, H query heads, G key heads, S tokens, D head width.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

from brimful.build.attention import varlen
from brimful.values.strategy import Attention

_aten = torch.ops.aten
KERNELS = (
    _aten._scaled_dot_product_flash_attention_for_cpu.default,  # noqa: SLF001
    _aten._scaled_dot_product_flash_attention.default,  # noqa: SLF001
    _aten._scaled_dot_product_efficient_attention.default,  # noqa: SLF001
    _aten._scaled_dot_product_cudnn_attention.default,  # noqa: SLF001
)
"""What ``scaled_dot_product_attention`` becomes, where it is not written out."""
NAMES: dict[Attention, str] = {
    "sdpa": "brimful_sdpa",
    "flash": "brimful_fa",
    "efficient": "brimful_efficient",
    "cudnn": "brimful_cudnn",
}
"""The names under which ``transformers`` knows each; it looks for a package of its own behind every
name with ``flash`` in it."""
Forward = Callable[..., tuple[torch.Tensor, None]]


def _pinned(backend: SDPBackend, *, takes_grouped: bool) -> Forward:
    """Return an attention that runs on one kernel or not at all.

    ``takes_grouped``: whether it serves several query heads with one key head.
    """

    def attend(  # noqa: PLR0913 - transformers' signature
        module: nn.Module,
        query_BHSD: torch.Tensor,  # noqa: N803
        key_BGSD: torch.Tensor,  # noqa: N803
        value_BGSD: torch.Tensor,  # noqa: N803
        attention_mask: torch.Tensor | None,
        *,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **_others: Any,
    ) -> tuple[torch.Tensor, None]:
        causal = module.is_causal if is_causal is None else is_causal
        grouped = query_BHSD.shape[1] != key_BGSD.shape[1]
        if grouped and not takes_grouped:
            num_groups = query_BHSD.shape[1] // key_BGSD.shape[1]
            key_BGSD, value_BGSD = (  # noqa: N806
                repeat_kv(x, num_groups) for x in (key_BGSD, value_BGSD)
            )
        with sdpa_kernel(backend):
            out_BHSD = scaled_dot_product_attention(  # noqa: N806
                query_BHSD,
                key_BGSD,
                value_BGSD,
                attn_mask=attention_mask,
                dropout_p=dropout,
                is_causal=bool(causal) and attention_mask is None,
                scale=scaling,
                enable_gqa=grouped and takes_grouped,
            )
        return out_BHSD.transpose(1, 2).contiguous(), None

    return attend


_flash = _pinned(SDPBackend.FLASH_ATTENTION, takes_grouped=True)


def _flash_within(
    module: nn.Module, *heads_and_mask: Any, sliding_window: int | None = None, **told: Any
) -> tuple[torch.Tensor, None]:
    """Attend within a window, which the kernel is told as a number; a CPU's is given a mask."""
    query = heads_and_mask[0]
    if sliding_window is None or query.device.type == "cpu" or sliding_window >= query.shape[2]:
        return _flash(module, *heads_and_mask, **told)
    return varlen.attend(module, *heads_and_mask, sliding_window=sliding_window, **told)


AttentionInterface.register(NAMES["sdpa"], sdpa_attention_forward)
AttentionInterface.register(NAMES["flash"], _flash_within)
AttentionInterface.register(
    NAMES["efficient"], _pinned(SDPBackend.EFFICIENT_ATTENTION, takes_grouped=False)
)
AttentionInterface.register(NAMES["cudnn"], _pinned(SDPBackend.CUDNN_ATTENTION, takes_grouped=True))
