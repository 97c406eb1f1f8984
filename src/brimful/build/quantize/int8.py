"""Weight-only int8: a byte a weight, one scale for each row, products in the type of the inputs.

torchao has the same format; its layer for frozen weights keeps a full copy of each until backward,
its training layer computes a gradient that nobody wants. Here forward and backward make the weight
anew and keep nothing but its bytes.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from brimful.build.own import whole
from brimful.build.quantize.base import Format, Packed, hold

LARGEST = 127
"""The largest int8 in use: the range is symmetric."""


class Int8Linear(nn.Linear):  # type: ignore[misc]  # torch is untyped to mypy
    """A frozen linear layer whose weight is int8."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool,  # noqa: FBT001 - as in nn.Linear
        dtype: torch.dtype,
    ) -> None:
        """Make a layer that computes in ``dtype``; its weight is whole until it is filled."""
        super().__init__(in_features, out_features, bias=bias, dtype=dtype)
        self.compute_dtype = dtype
        self.register_buffer("scale", torch.empty(out_features, 1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x @ weight.T + bias`` in the type of ``x``."""
        bias = None if self.bias is None else self.bias.to(self.compute_dtype)
        low = x.to(self.compute_dtype)
        out: torch.Tensor = _Product.apply(low, self.weight, self.scale, bias)
        return out.to(x.dtype)


class _Product(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped to mypy
    """A product with a frozen weight, of which neither inputs nor a wide copy outlive forward."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        scale: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(weight, scale)
        out: torch.Tensor = functional.linear(x, _widen(weight, scale, x.dtype), bias)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        weight, scale = ctx.saved_tensors
        return grad @ _widen(weight, scale, grad.dtype), None, None, None


def _widen(weight: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # The scale is cast first: a product of two types would take wide copies of both on a CPU.
    return weight.to(dtype).mul_(scale.to(dtype))


def _linear(
    in_features: int,
    out_features: int,
    bias: bool,  # noqa: FBT001 - a field of Format's
    dtype: torch.dtype,
) -> nn.Linear:
    with torch.device("meta"):
        return Int8Linear(in_features, out_features, bias, dtype)


def _fill(layer: Any, weight: torch.Tensor) -> None:
    scale = weight.abs().amax(dim=1, keepdim=True).float().div_(LARGEST)
    # A row of zeros stays one: 0 / 0 is not a number.
    inverse = torch.where(scale > 0, scale.reciprocal(), 0.0)
    wide = weight.to(torch.float32, copy=True).mul_(inverse).round_()
    hold(layer, wide.to(torch.int8))
    layer.scale = scale


def _dequantize(layer: Any) -> torch.Tensor:
    weight = whole(layer.weight).to(layer.scale.device)  # kept on the host, maybe
    return _widen(weight, layer.scale, layer.compute_dtype)


def _packed(rows: int, columns: int) -> Packed:
    return Packed((rows, columns), torch.int8)


def _by_copies(_layer: Any) -> None:
    """Leave a layer as it is: what it saves for backward is what stands in its weight's place."""


INT8 = Format(_linear, _fill, _dequantize, _packed, _by_copies)
