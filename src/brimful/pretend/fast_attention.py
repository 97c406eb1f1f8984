"""The fast path of attention modules without gradients, which PyTorch runs in one operation.

``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer`` call one operator each where nothing is
trained. Its kernel is made of others, and what these allocate is most of it; a tape sees them.

Source: ``native_multi_head_attention_cpu`` in ``aten/src/ATen/native/transformers/attention.cpp``,
``transformer_encoder_layer_forward`` in ``transformer.cpp`` beside it. Of CUDA
(``native_multi_head_attention_cuda`` in ``cuda/attention.cu``): named from memory.
"""

from collections.abc import Callable
from typing import Any

import torch

from brimful.pretend import kernels
from brimful.pretend.attention_choice import Attention, choose

_aten = torch.ops.aten
_MULTIPLE = 8
"""Of head dimensions that CUDA's fused kernels take here."""


def parts_of(func: Any) -> Callable[..., Any] | None:
    """Return what runs the parts of such an operation; None: it is none of them."""
    return _PARTS.get(func)


def _product(x: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
    rows = x.reshape(-1, x.shape[-1])
    out = torch.mm(rows, weight.t()) if bias is None else torch.addmm(bias, rows, weight.t())
    return out.view(*x.shape[:-1], -1)


def _projected(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, width: int, weight: torch.Tensor
) -> torch.Tensor:
    """``qkv_projection``."""
    if key is value and query is key:
        return _product(query, weight)
    if key is value:
        first, others = weight.split([width, 2 * width], 0)
        return torch.cat([_product(query, first), _product(key, others)], 2)
    pairs = zip((query, key, value), weight.chunk(3, 0), strict=True)
    return torch.cat([_product(x, part) for x, part in pairs], 2)


def _attention(  # noqa: PLR0913, PLR0917 - the signature is PyTorch's
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,  # noqa: FBT001, FBT002
    average_attn_weights: bool = True,  # noqa: FBT001, FBT002
    mask_type: int | None = None,  # noqa: ARG001
) -> Any:
    """``_native_multi_head_attention``."""
    batch, tokens, head_dim = query.shape[0], query.shape[1], embed_dim // num_head
    is_own = key is value and query is key and not need_weights
    if kernels.current() == "cuda" and is_own and head_dim % _MULTIPLE == 0:
        out = _fused(query, num_head, (qkv_weight, qkv_bias), mask)
        if out is not None:
            return _product(out, proj_weight, proj_bias), None
    qkv = _projected(query, key, value, embed_dim, qkv_weight)
    split = qkv.new_empty((3, batch, num_head, tokens, head_dim))
    del qkv
    q, k = split[0].flatten(0, 1), split[1].flatten(0, 1)
    scores = torch.bmm(q, k.transpose(1, 2)).view(batch, num_head, tokens, tokens)
    if mask is not None:
        masked = mask if mask.dtype == torch.bool else mask.to(torch.bool)
        scores = torch.empty_like(scores)
        del masked
    context = split[0]  # the product is written over the queries
    if not need_weights:
        del scores
    rows = context.permute(0, 2, 1, 3).contiguous().view(batch, tokens, embed_dim)
    out = _product(rows, proj_weight, proj_bias)
    del rows
    if not need_weights:
        return out, None
    return out, scores.sum(1).div_(num_head) if average_attn_weights else scores


def _fused(
    query: torch.Tensor, num_head: int, qkv: tuple[torch.Tensor, torch.Tensor], mask: Any
) -> torch.Tensor | None:
    """Return attention by a fused kernel before its last product; None where none takes it."""
    heads = query.view(query.shape[0], -1, num_head, query.shape[-1] // num_head).transpose(1, 2)
    call = Attention(heads, heads, heads, mask, 0.0, False, None, False)
    if choose(call).kernel == "math":
        return None
    parts = _product(query, *qkv).chunk(3, -1)
    q, k, v = (x.view(x.shape[0], -1, num_head, heads.shape[-1]).transpose(1, 2) for x in parts)
    out: torch.Tensor = _aten.scaled_dot_product_attention.default(q, k, v, mask)
    return out.transpose(1, 2).reshape(query.shape)


def _encoder_layer(  # noqa: PLR0913, PLR0917 - the signature is PyTorch's
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,  # noqa: FBT001
    norm_first: bool,  # noqa: FBT001
    eps: float,
    *rest: Any,
) -> Any:
    """``_transformer_encoder_layer_fwd``."""
    first, second, up, down = rest[:2], rest[2:4], rest[4:6], rest[6:8]
    mask = rest[8] if len(rest) > 8 else None  # noqa: PLR2004 - its place

    def norm(x: torch.Tensor, weights: Any) -> torch.Tensor:
        return torch.native_layer_norm(x, [embed_dim], *weights, eps)[0]

    x = norm(src, first) if norm_first else src
    attended = (qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False)
    x = _attention(x, x, x, embed_dim, num_heads, *attended)[0]
    x = x.add_(src)
    x = x if norm_first else norm(x, first)
    kept = x
    x = norm(x, second) if norm_first else x
    rows = x.view(-1, embed_dim)
    wide = _aten._addmm_activation(up[1], rows, up[0].t(), use_gelu=use_gelu)  # noqa: SLF001
    x = torch.addmm(down[1], wide, down[0].t()).view(src.shape)
    del wide, rows
    x = x.add_(kept)
    return x if norm_first else norm(x, second)


_PARTS: dict[Any, Callable[..., Any]] = {
    _aten._native_multi_head_attention.default: _attention,  # noqa: SLF001
    _aten._transformer_encoder_layer_fwd.default: _encoder_layer,  # noqa: SLF001
}
