"""FlashAttention over rows laid end to end, told where every document begins: it needs no mask.

The operator is the one under ``torch.nn.attention.varlen``, called without that wrapper, whose
arguments are not the same from PyTorch 2.11 to 2.13. It has kernels for CUDA only.

Shapes: B batch, H query heads, G key heads, S tokens, D head width, N documents.
"""

from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface

from brimful.build.attention.positions import begins_document

NAME = "brimful_varlen"
ARGUMENT = "document_bounds"
"""The keyword under which the bounds go through the model."""
SUPPOSED_TOKENS = 128
"""Tokens of a document where nobody can count them, that is on fake tensors. The kernel's backward
pads every document to a multiple of 128 rows, so that longer ones take less than is simulated."""
_flash = torch.ops.aten._flash_attention_forward.default  # noqa: SLF001
KERNELS = (_flash,)


@torch.library.custom_op("brimful::document_bounds", mutates_args=())  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def document_bounds(segments: torch.Tensor) -> torch.Tensor:
    """Find where each document begins in the rows laid end to end, and where the last ends.

    ``segments``: [B, S] of int32: the document of each token in its row. Returns [N + 1] of int32,
    from 0 to B * S; padding is a document of its row.
    """
    starts = begins_document(segments).flatten().nonzero().flatten()
    return torch.cat([starts, starts.new_tensor([segments.numel()])]).int()


@document_bounds.register_fake  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def _(segments: torch.Tensor) -> torch.Tensor:
    num_rows, seq_len = segments.shape
    num_documents = num_rows * -(-seq_len // SUPPOSED_TOKENS)
    return segments.new_empty((num_documents + 1,))


def attend(  # noqa: D103, PLR0913 - the same as of transformers
    module: nn.Module,
    query_BHSD: torch.Tensor,  # noqa: N803
    key_BGSD: torch.Tensor,  # noqa: N803
    value_BGSD: torch.Tensor,  # noqa: N803
    _attention_mask: torch.Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    document_bounds: torch.Tensor | None = None,
    sliding_window: int | None = None,
    **_others: Any,
) -> tuple[torch.Tensor, None]:
    # Rotary positions widen queries and keys under autocast; values are as the kernel wants them.
    heads = (query_BHSD.to(value_BGSD.dtype), key_BGSD.to(value_BGSD.dtype), value_BGSD)
    rows = [x.transpose(1, 2) for x in heads]
    batch, seq_len = rows[0].shape[:2]
    if document_bounds is not None:
        rows = [x.flatten(0, 1) for x in rows]
    out = _flash(
        *rows,
        document_bounds,
        document_bounds,
        seq_len,
        seq_len,
        dropout,
        module.is_causal,
        False,
        scale=scaling,
        **({} if sliding_window is None else _back(sliding_window)),
    )[0]
    return out.view(batch, seq_len, *out.shape[-2:]), None


def _back(window: int) -> dict[str, int]:
    """Say to the operator that a token sees itself and the ``window - 1`` before it."""
    return {"window_size_left": window - 1, "window_size_right": 0}


AttentionInterface.register(NAME, attend)
