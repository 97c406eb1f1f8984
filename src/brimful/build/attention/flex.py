"""FlexAttention: a kernel that Inductor compiles for the card, told which blocks of scores to skip.

It has no backward pass on a CPU. In a compiled block it is part of the block's graph; elsewhere it
is a graph of its own, which all blocks share.

Shapes: B batch, H query heads, G key heads, S tokens, D head width.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface

NAME = "brimful_flex"
ARGUMENT = "visible_blocks"
"""The keyword under which the block mask goes through the model."""
KERNELS = (
    torch.ops.higher_order.flex_attention,
    torch.ops.higher_order.inductor_compiled_code,
)
"""What a selective checkpoint keeps: in a compiled block, and where it is a graph of its own."""
_AS_ONE = {"wrap_inductor_compiled_regions": True}
"""Lets who looks on see that graph as one operation; torchtitan compiles it so too."""


def causal_blocks(inputs: torch.Tensor) -> BlockMask:
    """Say which blocks of scores a row of one document needs; see ``document_blocks``.

    ``inputs``: [B, S], of which the shape and the device matter.
    """

    def may_look(_row: Any, _head: Any, query: Any, key: Any) -> Any:
        return query >= key

    return _blocks(may_look, inputs, num_rows=None)


def document_blocks(segments: torch.Tensor) -> BlockMask:
    """Say which blocks of scores are needed where a token sees its own document up to itself.

    ``segments``: [B, S] of int32: the document of each token in its row.
    """

    def may_look(row: Any, _head: Any, query: Any, key: Any) -> Any:
        return (query >= key) & (segments[row, query] == segments[row, key])

    return _blocks(may_look, segments, num_rows=segments.shape[0])


def _blocks(may_look: Any, tokens: torch.Tensor, *, num_rows: int | None) -> BlockMask:
    seq_len = tokens.shape[1]
    return create_block_mask(may_look, num_rows, None, seq_len, seq_len, device=tokens.device)


@lru_cache(maxsize=1)
def _compiled_by(compiler: Callable[..., Any]) -> Any:
    """Compile it once; anew where another compiler stands in PyTorch's place: in a simulation."""
    return compiler(flex_attention, dynamic=False, options=_AS_ONE)


def _attention_on(device: torch.device) -> Any:
    """Return what attends: uncompiled it would make all scores; a CPU's says why it cannot run."""
    is_in_graph = torch.compiler.is_compiling()
    return flex_attention if is_in_graph or device.type == "cpu" else _compiled_by(torch.compile)


def _attend(
    _module: nn.Module,
    query_BHSD: torch.Tensor,  # noqa: N803
    key_BGSD: torch.Tensor,  # noqa: N803
    value_BGSD: torch.Tensor,  # noqa: N803
    _attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    visible_blocks: BlockMask | None = None,
    **_others: Any,
) -> tuple[torch.Tensor, None]:
    out_BHSD = _attention_on(query_BHSD.device)(  # noqa: N806
        query_BHSD.to(value_BGSD.dtype),
        key_BGSD.to(value_BGSD.dtype),
        value_BGSD,
        block_mask=visible_blocks,
        scale=scaling,
        enable_gqa=query_BHSD.shape[1] != key_BGSD.shape[1],
    )
    return out_BHSD.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, _attend)
