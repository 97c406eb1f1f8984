"""Norms, activations, softmax, rotary embeddings, dropout, padding, and updates of many tensors.

Source: ``pytorch/csrc/extensions/{normalization,activation,bias,softmax,apply_rope,dropout,
padding}.cpp``, ``multi_tensor/*.cpp``, ``common/normalization/common.h``. Shapes:
M rows, K columns.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from brimful.pretend import device
from brimful.pretend.transformer_engine.quantizing import made, nothing, through, torch_type

_GATED = ("glu", "geglu", "qgeglu", "reglu", "sreglu", "swiglu", "clamped_swiglu")
_PLAIN = ("gelu", "qgelu", "relu", "srelu", "silu")
_SOFTMAX = ("scaled", "scaled_masked", "scaled_upper_triang_masked", "scaled_aligned_causal_masked")
_NORM_SLOTS = 320
"""What a norm over many tensors adds up in (``multi_tensor_l2norm_cuda``)."""


def _new(like: torch.Tensor, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype or like.dtype, device=like.device)


def _rows(x: Any) -> int:
    return math.prod(x.size()[:-1])


def _norm_forward(x: Any, out: Any, quantizer: Any, dtype: Any, statistics: int) -> list[Any]:
    """Output and a number or two in fp32 of each row."""
    kept = [torch.empty(_rows(x), dtype=torch.float32, device="cuda") for _ in range(statistics)]
    if out is None:
        out = through(quantizer, x.size(), torch_type(dtype))
    return [out, *kept]


def _layernorm(
    x: Any, _weight: Any, _bias: Any, _eps: float, out: Any, quantizer: Any, dtype: Any, *_rest: Any
) -> list[Any]:
    return _norm_forward(x, out, quantizer, dtype, 2)


def _rmsnorm(
    x: Any, _weight: Any, _eps: float, out: Any, quantizer: Any, dtype: Any, *_rest: Any
) -> list[Any]:
    return [*_norm_forward(x, out, quantizer, dtype, 1)[:1], None, _row_numbers(x)]


def _row_numbers(x: Any) -> torch.Tensor:
    return torch.empty(_rows(x), dtype=torch.float32, device="cuda")


def _norm_backward(x: torch.Tensor, weight: torch.Tensor, count: int) -> list[Any]:
    """Gradients; partial ones of the weights, one row for every multiprocessor, live meanwhile.

    How many blocks share a row is tuned by width (``ctas_per_col``); one is taken here.
    """
    out = [torch.empty_like(x)] + [torch.empty_like(weight) for _ in range(count)]
    parts = device.card().multi_processor_count * count
    partial_sums = _new(x, parts, weight.numel(), dtype=torch.float32)
    del partial_sums
    return out


def _layernorm_backward(
    grad: torch.Tensor, x: torch.Tensor, _mu: Any, _rsigma: Any, weight: torch.Tensor, *_rest: Any
) -> list[Any]:
    grad, x = grad.contiguous(), x.contiguous()
    return _norm_backward(x, weight, 2)


def _rmsnorm_backward(
    grad: torch.Tensor, x: torch.Tensor, _rsigma: Any, weight: torch.Tensor, *_rest: Any
) -> list[Any]:
    grad, x = grad.contiguous(), x.contiguous()
    return _norm_backward(x, weight, 1)


def _rmsnorm_backward_add(
    grad: torch.Tensor,
    x: torch.Tensor,
    add: torch.Tensor,
    _rsigma: Any,
    weight: torch.Tensor,
    *_rest: Any,
) -> list[Any]:
    grad, x, add = grad.contiguous(), x.contiguous(), add.contiguous()
    return _norm_backward(x, weight, 1)


def _activation(divisor: int, x: torch.Tensor, quantizer: Any, *_how: Any, **_named: Any) -> Any:
    x = x.contiguous()
    return through(quantizer, (*x.shape[:-1], x.shape[-1] // divisor), x.dtype)


def _activation_backward(
    grad: torch.Tensor, x: torch.Tensor, quantizer: Any, *_how: Any, **_named: Any
) -> Any:
    grad, x = grad.contiguous(), x.contiguous()
    return through(quantizer, x.shape, x.dtype)


def _with_bias(grad: torch.Tensor, x: torch.Tensor, quantizer: Any) -> list[Any]:
    """``dact_dbias``."""
    grad, x = grad.contiguous(), x.contiguous()
    out = made(quantizer, x.shape, grad.dtype)
    bias = _new(grad, x.shape[-1])
    if type(quantizer).__name__ not in {"Float8Quantizer", "MXFP8Quantizer"}:
        plain = _new(grad, *x.shape)
        del plain
    return [bias, out]


def _softmax(x: torch.Tensor, *_how: Any) -> torch.Tensor:
    return _new(x, *x.shape)


def _softmax_backward(grad: torch.Tensor, out: torch.Tensor, *_how: Any) -> torch.Tensor:
    """It writes over the gradient that came in."""
    out = out.contiguous()
    return grad.contiguous()


def _rope(x: torch.Tensor, *_how: Any) -> torch.Tensor:
    return _new(x, *x.shape)


def _qkv_rope(qkv: torch.Tensor, _q: Any, _k: Any, _start: Any, split: Any, *_how: Any) -> Any:
    lead, groups = qkv.shape[:2], qkv.shape[2]
    q = _new(qkv, *lead, groups * split[0] // split[1], split[1])
    return q, _new(qkv, *lead, groups, split[1]), _new(qkv, *lead, groups, split[2])


def _qkv_rope_backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _q: Any, _k: Any, split: Any, *_how: Any
) -> torch.Tensor:
    heads = q.shape[2] * q.shape[3] // split[0]
    return _new(q, q.shape[0], q.shape[1], heads, sum(split)) if heads else _new(k, *v.shape)


def _dropout(x: Any, _probability: float, out: Any = None) -> list[Any]:
    """The output, and a bit for each element."""
    if out is None:
        out = torch.empty(list(x.size()), dtype=x.dtype, device="cuda")
    numel = math.prod(x.size())
    return [out, torch.empty(numel // 8, dtype=torch.uint8, device="cuda")]


def _dropout_backward(grad: torch.Tensor, _mask: Any, _probability: float, out: Any = None) -> Any:
    return torch.empty_like(grad) if out is None else out


def _l2norm(
    _chunk: int, _noop: Any, lists: Any, *rest: Any, by_tensor: bool | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """``multi_tensor_l2norm``: one norm of all, and one of each tensor where asked for."""
    each = by_tensor if by_tensor is not None else bool(rest and rest[-1] is True)
    first = lists[0][0]
    sums = torch.zeros(_NORM_SLOTS, dtype=torch.float32, device=first.device)
    count, chunks = (
        (len(lists[0]), max(-(-x.numel() // _chunk) for x in lists[0])) if each else (0, 0)
    )
    partial_sums = torch.zeros(count * chunks, dtype=torch.float32, device=first.device)
    out = _new(first, 1, dtype=torch.float32), _new(first, count, dtype=torch.float32)
    del sums, partial_sums
    return out


def _unscaled_l2norm(
    chunk: int, noop: Any, lists: Any, _scale: Any, by_tensor: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    return _l2norm(chunk, noop, lists, by_tensor=bool(by_tensor))


def _offsets(first: torch.Tensor, _width: int) -> torch.Tensor:
    return torch.empty(first.numel() + 1, dtype=torch.int64, device=first.device)


def _swapped(x: torch.Tensor, *, out: Any = None) -> Any:
    """``swap_first_dims``."""
    return _new(x, x.shape[1], x.shape[0], *x.shape[2:]) if out is None else out


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "layernorm_fwd": _layernorm,
    "layernorm_bwd": _layernorm_backward,
    "rmsnorm_fwd": _rmsnorm,
    "rmsnorm_bwd": _rmsnorm_backward,
    "rmsnorm_bwd_add": _rmsnorm_backward_add,
    **{name: partial(_activation, 2) for name in _GATED},
    **{name: partial(_activation, 1) for name in _PLAIN},
    **{f"d{name}": _activation_backward for name in (*_GATED, *_PLAIN)},
    "clamped_dswiglu": _activation_backward,
    **{f"dbias_d{name}": _with_bias for name in _PLAIN},
    **{f"{name}_softmax_forward": _softmax for name in _SOFTMAX},
    **{f"{name}_softmax_backward": _softmax_backward for name in _SOFTMAX},
    "fused_rope_forward": _rope,
    "fused_rope_backward": _rope,
    "fused_qkv_rope_forward": _qkv_rope,
    "fused_qkv_rope_backward": _qkv_rope_backward,
    "dropout_fwd": _dropout,
    "dropout_bwd": _dropout_backward,
    "fused_multi_row_padding": nothing,
    "fused_multi_row_unpadding": nothing,
    "splits_to_offsets": _offsets,
    "swap_first_dims": _swapped,
    "multi_tensor_l2norm": _l2norm,
    "multi_tensor_unscale_l2norm": _unscaled_l2norm,
    **{
        f"multi_tensor_{name}": nothing
        for name in (
            "scale", "scale_tensor", "adam", "adam_param_remainder", "adam_fp8", "adam_capturable",
            "adam_capturable_master",
        )
    },
    "multi_tensor_sgd": nothing,
}  # fmt: skip
