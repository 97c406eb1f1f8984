"""Attention by cuDNN, and what rings of context parallelism do between its calls.

Source: ``pytorch/csrc/extensions/attention.cpp``, ``common/fused_attn/fused_attn.cpp``
(``nvte_get_fused_attn_backend``, of training with cuDNN 9.17),
``fused_attn_f16_arbitrary_seqlen.cu``.
What a plan of cuDNN's takes for itself is not in them. For backward the gradient of the queries in
fp32 and a sum for each row are taken, as FlashAttention's backward has; for forward nothing.

Shapes: S or M queries, N keys, B batch, H heads, K head dimension; T tokens of packed sequences.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from brimful.pretend import device
from brimful.pretend.transformer_engine.names import NAMES, DType
from brimful.pretend.transformer_engine.quantizing import made, nothing

_Layout, _Format, _Backend, _Softmax = (
    NAMES[f"NVTE_{each}"]
    for each in ("QKV_Layout", "QKV_Format", "Fused_Attn_Backend", "Softmax_Type")
)
_ENUMS = tuple(
    NAMES[name] for name in NAMES if name.startswith("NVTE_") and name != "NVTE_Fused_Attn_Backend"
)
_HOPPER, _BLACKWELL = (9, 0), (10, 0)
_MOST, _MOST_ON_HOPPER = 128, 256
_MLA = (192, 128)
"""Head dimensions of queries and of values in multi-head latent attention."""
_FP8 = (int(DType["kFloat8E4M3"]), int(DType["kFloat8E5M2"]))


def _backend(*args: Any) -> Any:
    """``get_fused_attn_backend``: whether cuDNN takes such a call in training.

    Since Transformer Engine 2.20 one value holds the arguments, and words of refusal come back too.
    """
    if hasattr(args[0], "qkv_dtype"):
        asked = args[0]
        found = _taken_by(int(asked.qkv_dtype), asked.head_dim_qk, asked.head_dim_v)
        return found, "" if found != _Backend.NVTE_No_Backend else "cuDNN has no such kernel"
    types = [int(x) for x in args if isinstance(x, DType) or type(x).__name__ == "DType"]
    heads, groups, queries, keys, width, value_width = [x for x in args if type(x) is int][:6]
    del heads, groups, queries, keys
    return _taken_by(types[0], width, value_width)


def _taken_by(dtype: int, width: int, value_width: int) -> Any:
    """Return cuDNN's kernel for heads of queries and values that are as wide."""
    capability = device.card().capability
    widest = max(width, value_width)
    if dtype in _FP8:
        fits = (
            width == value_width == _MOST
            if capability < _BLACKWELL
            else widest <= _MOST or (width, value_width) == _MLA
        )
        return _Backend.NVTE_FP8 if fits and capability >= _HOPPER else _Backend.NVTE_No_Backend
    by_card = widest <= _MOST or (capability >= _HOPPER and (width, value_width) == _MLA)
    if capability == _HOPPER and widest <= _MOST_ON_HOPPER:
        by_card = by_card or width == value_width
    is_taken = by_card and width % 8 == 0 and value_width % 8 == 0 and capability >= (8, 0)
    is_half = dtype in {int(DType["kFloat16"]), int(DType["kBFloat16"])}
    return _Backend.NVTE_F16_arbitrary_seqlen if is_taken and is_half else _Backend.NVTE_No_Backend


def _tensors(args: Any) -> list[Any]:
    """Return queries, keys, values and what follows them: the arguments with heads."""
    return [x for x in args if hasattr(x, "size") and callable(x.size) and len(x.size()) > 2]  # noqa: PLR2004


def _of(args: Any, kind: Any) -> Any:
    return next(x for x in args if isinstance(x, kind))


def _is_packed(layout: Any) -> bool:
    return str(layout.name).removeprefix("NVTE_").startswith("T")


def _statistics(q: Any, layout: Any) -> torch.Tensor:
    """One number in fp32 of each row: [T, H, 1] of packed sequences, else [B, H, M, 1]."""
    shape = tuple(q.size())
    if _is_packed(layout):
        rows = (shape[0], shape[1], 1)
        return torch.empty(rows, dtype=torch.float32, device="cuda")
    is_first = layout.name.removeprefix("NVTE_").startswith("S")
    queries, batch = shape[:2] if is_first else (shape[1], shape[0])
    return torch.empty((batch, shape[2], queries, 1), dtype=torch.float32, device="cuda")


def _forward(*args: Any) -> list[Any]:
    """``fused_attn_fwd``: output, row statistics (largest scores too where asked), random state."""
    q, _, v = _tensors(args)[:3]
    layout = _of(args, _Layout)
    dtype = _of(args, torch.dtype)
    is_training = next(x for x in args if isinstance(x, bool))
    quantizers = [x for x in args if hasattr(x, "rowwise_usage") and hasattr(x, "internal")]
    out = made(quantizers[-1] if quantizers else None, (*q.size()[:-1], v.size()[-1]), dtype)
    wants_largest = bool(args[-2]) if isinstance(args[-2], bool) else False
    state = torch.empty(2, dtype=torch.int64, device="cuda")
    if not is_training:
        return [out]
    kept = [_statistics(q, layout) for _ in range(1 + wants_largest)]
    offsets = [x for x in _tensors(args)[3:] if _is_offset(x)] if _is_offset_by(args) else []
    return [out, *kept, state, *offsets]


def _is_offset_by(args: Any) -> bool:
    """Whether a softmax has a number more in its sum, for each head."""
    asked = next((x for x in args if isinstance(x, _Softmax)), None)
    return asked is not None and asked != _Softmax.NVTE_VANILLA_SOFTMAX


def _is_offset(x: Any) -> bool:
    """Whether a tensor is one number for each head: [1, H, 1, 1]."""
    one, _, *others = x.size()
    return [one, *others] == [1, 1, 1]


def _backward(*args: Any) -> list[Any]:
    """``fused_attn_bwd``: gradients laid out as queries, keys and values were."""
    q, k, v = _tensors(args)[:3]
    layouts = [x for x in args if isinstance(x, _Layout)]
    dtype = _of(args, torch.dtype)
    grads = _gradients(layouts[-1].name.removeprefix("NVTE_"), (q, k, v), dtype)
    sums = torch.empty(math.prod(q.size()), dtype=torch.float32, device="cuda")
    rows = torch.empty(math.prod(q.size()[:-1]), dtype=torch.float32, device="cuda")
    del sums, rows
    if not _is_offset_by(args):
        return [*grads, None, None]
    offset = torch.empty((1, q.size()[-2], 1, 1), dtype=torch.float32, device="cuda")
    return [*grads, None, offset]


def _gradients(layout: str, qkv: tuple[Any, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    """Return three tensors, views of one where a layout holds several together."""
    shapes = [tuple(x.size()) for x in qkv]

    def together(count: int, shape: tuple[int, ...], *, inside: bool) -> list[torch.Tensor]:
        place = len(shape) - 1 if inside else len(shape) - 2
        whole = torch.empty((*shape[:place], count, *shape[place:]), dtype=dtype, device="cuda")
        return list(whole.unbind(place))

    if "3" in layout:
        return together(3, shapes[0], inside=layout.endswith("H3D"))
    first = torch.empty(shapes[0], dtype=dtype, device="cuda")
    if "2" in layout:
        return [first, *together(2, shapes[1], inside=layout.endswith("H2D"))]
    others = [torch.empty(shape, dtype=dtype, device="cuda") for shape in shapes[1:]]
    return [first, *others]


def _half(x: torch.Tensor, _offsets: Any, _which: int) -> torch.Tensor:
    """``thd_read_half_tensor``: tokens are in the dimension before heads."""
    shape = list(x.shape)
    place = x.dim() - 3
    shape[place] //= 2
    return torch.empty(shape, dtype=x.dtype, device=x.device)


def _half_of_statistics(lse: torch.Tensor, _offsets: Any, *_how: Any) -> torch.Tensor:
    return torch.zeros((*lse.shape[:-1], lse.shape[-1] // 2), dtype=lse.dtype, device=lse.device)


def _unpacked(x: torch.Tensor, _offsets: Any, batch: int, longest: int) -> torch.Tensor:
    return torch.zeros((batch, longest, *x.shape[1:]), dtype=x.dtype, device=x.device)


def _packed(x: torch.Tensor, _offsets: Any, tokens: int) -> torch.Tensor:
    return torch.zeros((tokens, *x.shape[2:]), dtype=x.dtype, device=x.device)


def _indices(_offsets: torch.Tensor, tokens: int, parts: int, _rank: int) -> torch.Tensor:
    return torch.empty(tokens // parts, dtype=torch.int32, device="cuda")


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "get_fused_attn_backend": _backend,
    "fused_attn_fwd": _forward,
    "fused_attn_bwd": _backward,
    "fa_prepare_fwd": lambda x: torch.empty(
        (3, x.shape[1], x.shape[0], *x.shape[2:]), dtype=x.dtype, device=x.device
    ),
    "fa_prepare_bwd": lambda q, _k, _v: torch.empty(
        (q.shape[1], q.shape[0], q.shape[2], 3 * q.shape[3]), dtype=q.dtype, device=q.device
    ),
    "thd_read_half_tensor": _half,
    "thd_read_second_half_lse": _half_of_statistics,
    "thd_second_half_lse_correction": nothing,
    "thd_out_correction": nothing,
    "thd_grad_correction": nothing,
    "thd_get_partitioned_indices": _indices,
    "convert_thd_to_bshd": _unpacked,
    "convert_bshd_to_thd": _packed,
}
