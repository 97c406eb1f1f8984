"""Routers of mixtures, and the reordering of tokens.

Source: ``pytorch/csrc/extensions/{router,permutation}.cpp``. Shapes: T tokens, E experts.
"""

from collections.abc import Callable
from typing import Any

import torch

from brimful.pretend.known_values import KnownValues
from brimful.pretend.transformer_engine.names import NAMES
from brimful.pretend.transformer_engine.quantizing import nothing

_BYTES = NAMES["NVTERoutingMapFormat"].BYTEMAP


def functions(known: KnownValues) -> dict[str, Callable[..., Any]]:
    """Return them.

    ``known``: what is known of values: which experts tokens are taken to choose.
    """

    def _map(logits: torch.Tensor, topk: int, form: Any) -> torch.Tensor:
        experts = logits.shape[-1]
        if form != _BYTES:
            shape = (*logits.shape[:-1], -(-experts // 8))
            return torch.empty(shape, dtype=torch.uint8, device=logits.device)
        chosen = torch.empty(logits.shape, dtype=torch.bool, device=logits.device)
        known.choose(chosen, topk)
        return chosen

    def topk(
        logits: torch.Tensor,
        topk: int,
        _before: Any,
        _groups: Any,
        _group_topk: Any,
        _scale: Any,
        _score: Any,
        _bias: Any,
        form: Any = _BYTES,
        *_since_2_20: Any,
    ) -> tuple[torch.Tensor, ...]:
        probs = torch.empty_like(logits)
        chosen = _map(logits, topk, form)
        return probs, chosen, torch.empty_like(logits, dtype=torch.float32)

    def scores(
        logits: torch.Tensor, topk: int, score_function: str, routing_map_format: Any = _BYTES
    ) -> tuple[torch.Tensor, ...]:
        del score_function
        found = torch.empty_like(logits, dtype=torch.float32)
        chosen = _map(logits, topk, routing_map_format)
        return found, chosen, torch.empty_like(logits, dtype=torch.float32)

    return {
        "fused_topk_with_score_function_fwd": topk,
        "fused_topk_with_score_function_bwd": nothing,
        "fused_score_for_moe_aux_loss_fwd": scores,
        "fused_score_for_moe_aux_loss_bwd": nothing,
        "fused_moe_aux_loss_fwd": _aux_loss,
        "fused_moe_aux_loss_bwd": _aux_loss_backward,
        "moe_permute_fwd": _permute,
        "moe_permute_bwd": _unpermute,
        "moe_unpermute_fwd": _unpermute,
        "moe_unpermute_bwd": _unpermute_backward,
    }


def _aux_loss(probs: torch.Tensor, **_how: Any) -> tuple[torch.Tensor, torch.Tensor]:
    loss = torch.empty((), dtype=probs.dtype, device=probs.device)
    return loss, torch.empty(2, dtype=torch.float32, device=probs.device)


def _aux_loss_backward(
    *, num_rows: int, num_cols: int, grad_aux_loss: torch.Tensor, **_how: Any
) -> torch.Tensor:
    where, dtype = grad_aux_loss.device, grad_aux_loss.dtype
    return torch.empty((num_rows, num_cols), dtype=dtype, device=where)


def _permute(
    x: torch.Tensor, _dtype: Any, indices: torch.Tensor, tokens: int, workspace: Any, most: int
) -> tuple[Any, ...]:
    """``moe_permute_fwd``: what sorts is kept from call to call; its scratch is not counted."""
    if not workspace:
        workspace = [torch.empty(most, dtype=torch.int32, device=x.device) for _ in range(3)]
        workspace.append(torch.empty(0, dtype=torch.int8, device=x.device))
    rows = tokens if tokens > 0 else indices.numel()
    out = torch.empty((rows, x.shape[1]), dtype=x.dtype, device=x.device)
    return out, torch.empty(indices.numel(), dtype=torch.int32, device=x.device), workspace


def _unpermute(
    x: torch.Tensor, _dtype: Any, _map: Any, _prob: Any, tokens: int, _topk: int
) -> torch.Tensor:
    return torch.empty((tokens, x.shape[1]), dtype=x.dtype, device=x.device)


def _unpermute_backward(
    gradient: torch.Tensor, x: torch.Tensor, _dtype: Any, row_map: torch.Tensor, prob: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.empty(x.shape, dtype=gradient.dtype, device=gradient.device)
    shape = prob.shape if prob.numel() else (row_map.shape[0], 1)
    return out, torch.empty(shape, dtype=torch.float32, device=gradient.device)
