"""NF4: four bits a weight and one scale for 64 of them, by bitsandbytes.

A weight takes half a byte and its block's scale 4 / 64 of one; with double quantisation the scales
are held in a byte each, with a scale of their own for 256. In forward and backward the layer makes
its weight anew in the type that it computes in.
"""

from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from brimful.build.own import whole
from brimful.build.quantize.base import Format, Packed, hold, require_bitsandbytes

BLOCK = 64
"""Weights that share a scale: bitsandbytes' default, and the paper's."""
NESTED_BLOCK = 256
"""Scales that share a scale, with double quantisation."""


def _linear(
    in_features: int,
    out_features: int,
    bias: bool,  # noqa: FBT001 - a field of Format's
    dtype: torch.dtype,
    *,
    double: bool,
) -> nn.Linear:
    bitsandbytes = require_bitsandbytes()
    _table()
    with torch.device("meta"):
        layer: nn.Linear = bitsandbytes.nn.Linear4bit(
            in_features,
            out_features,
            bias=bias,
            compute_dtype=dtype,
            compress_statistics=double,
            quant_type="nf4",
        )
    # In evaluation it would lay the weights out for a kernel that has no backward, for good.
    layer.support_avx512bf16_for_cpu = False
    return layer


def _fill(layer: Any, weight: torch.Tensor, *, double: bool) -> None:
    """Quantise as ``Params4bit`` does, into a plain parameter: fake tensors take no subclass."""
    packed, state = require_bitsandbytes().functional.quantize_4bit(
        weight.contiguous(), blocksize=BLOCK, compress_statistics=False, quant_type="nf4"
    )
    if double:
        _compress(state)
    hold(layer, packed)
    layer.weight.quant_state = layer.quant_state = state
    if isinstance(layer.weight, DTensor):
        layer.register_forward_pre_hook(_read_by_own_state)
    for name, constant in _constants(state).items():
        layer.register_buffer(name, constant, persistent=False)


def _read_by_own_state(layer: Any, _args: Any) -> None:
    """Let a weight that was gathered just now be read; a plain parameter, as for ``_fill``."""
    layer.weight.quant_state = layer.quant_state


def _by_copies(layer: Any) -> None:
    """Let a layer compute by a product that saves the weight, and does not hold it until backward.

    Beside the weight that it has meanwhile is what it is read by, for who saves it.
    """
    layer.weight.quant_state = layer.quant_state
    layer.forward = partial(_product, layer)


def _product(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """Return what ``Linear4bit.forward`` does, by the same operators."""
    low = x.to(layer.compute_dtype)
    bias = None if layer.bias is None else layer.bias.to(layer.compute_dtype)
    out: torch.Tensor = _Product.apply(low, layer.weight, bias, layer.quant_state)
    return out.to(x.dtype)


class _Product(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped to mypy
    """``MatMul4Bit``, but that autograd is told what it keeps of the weight.

    Source: ``bitsandbytes/autograd/_functions.py`` (0.50).
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, state: Any
    ) -> torch.Tensor:
        ctx.save_for_backward(weight)
        ctx.state = state
        out: torch.Tensor = require_bitsandbytes().matmul_4bit(
            x, weight, bias=bias, quant_state=state
        )
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (weight,) = ctx.saved_tensors
        wide = require_bitsandbytes().functional.dequantize_4bit
        return torch.matmul(grad, wide(weight, ctx.state).to(grad.dtype)), None, None, None


def _packed(rows: int, columns: int) -> Packed:
    return Packed((-(-rows * columns // 2), 1), torch.uint8)


def _compress(state: Any) -> None:
    """Quantise the scales, as ``quantize_4bit`` does if asked.

    It keeps its table of bytes for the life of the process, on the device of the first call; were
    that pretended, the next real run would find it. Here every layer gets the table anew.
    """
    offset = state.absmax.mean()
    table = torch.tensor(_table(), device="cpu").to(offset.device)
    state.absmax, state.state2 = require_bitsandbytes().functional.quantize_blockwise(
        state.absmax - offset, code=table, blocksize=NESTED_BLOCK
    )
    state.offset, state.nested = offset, True


@cache
def _table() -> tuple[float, ...]:
    """Return what each byte of a scale stands for; first called where tensors are real."""
    return tuple(require_bitsandbytes().functional.create_dynamic_map().tolist())


def _constants(state: Any) -> dict[str, torch.Tensor]:
    """Name what the weight cannot be read without; as buffers they are counted where they live."""
    named = {"absmax": state.absmax, "code": state.code}
    if state.nested:
        nested = {"absmax_offset": state.offset, "nested_absmax": state.state2.absmax}
        named |= {**nested, "nested_code": state.state2.code}
    return named


def _dequantize(layer: Any) -> torch.Tensor:
    packed = whole(layer.weight).to(layer.quant_state.absmax.device)  # on the host, maybe
    weight: torch.Tensor = require_bitsandbytes().functional.dequantize_4bit(
        packed, layer.quant_state
    )
    return weight


NF4, NF4_DOUBLE = (
    Format(
        partial(_linear, double=double),
        partial(_fill, double=double),
        _dequantize,
        _packed,
        _by_copies,
    )
    for double in (False, True)
)
