"""torchao's formats for weights that are only read: a byte a weight, or half a byte.

``int8`` is its ``Int8WeightOnlyConfig``: a scale and a zero point for each row, products in the
type of the inputs; a weight is one tensor of torchao's own class. ``int4`` holds what its
``Int4WeightOnlyConfig`` holds, a scale and a zero for 128 weights, in the layout for CPUs, and
calls the kernel that torchao calls there, which reads it packed; torchao's own class
(``Int4OpaqueTensor``) takes no tensor of a pretend device. A weight is quantised where it lies.

``int8-dynamic`` and ``int4-dynamic`` are what ``brimful convert`` writes: inputs are rounded too.
"""

from functools import partial
from typing import Any

import torch
from torch import nn

from brimful.build.quantize.base import Format, frozen
from brimful.errors import UnsupportedError
from brimful.process.library_output import quiet_libraries
from brimful.techniques.quantization import GROUP_SIZE, ROW, Quantization

INT4_GROUP = 128
"""Weights that share a scale: torchao's default."""
_INT4_LEAST, _INT4_LARGEST, _INT4_EPSILON = 0, 15, 1e-6


def _linear(
    in_features: int,
    out_features: int,
    bias: bool,  # noqa: FBT001 - a field of Format's
    dtype: torch.dtype,
) -> nn.Linear:
    require_torchao()
    with torch.device("meta"):
        layer: nn.Linear = nn.Linear(in_features, out_features, bias=bias, dtype=dtype)
    layer.compute_dtype = dtype
    return layer


def _fill_int8(layer: Any, weight: torch.Tensor) -> None:
    kind = require_torchao().Int8Tensor
    granularity = require_torchao().PerRow()
    layer.weight = frozen(kind.from_hp(weight, granularity))


class Int4Linear(nn.Linear):  # type: ignore[misc]  # torch is untyped to mypy
    """A linear layer whose weight is packed for the CPU's kernel; whole until it is filled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x @ weight.T + bias``, in the type of ``x``.

        Source: ``Int4OpaqueTensor``'s ``linear`` in torchao 0.18.
        """
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        out: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(  # noqa: SLF001
            rows, self.weight, INT4_GROUP, self.scale_and_zero
        )
        out = out.reshape(*x.shape[:-1], self.out_features)
        return out if self.bias is None else out.add_(self.bias)


def _linear_int4(
    in_features: int,
    out_features: int,
    bias: bool,  # noqa: FBT001 - a field of Format's
    dtype: torch.dtype,
) -> nn.Linear:
    require_torchao()
    with torch.device("meta"):
        layer = Int4Linear(in_features, out_features, bias=bias, dtype=dtype)
    layer.compute_dtype = dtype
    return layer


def _fill_int4(layer: Any, weight: torch.Tensor) -> None:
    """Quantise as ``Int4OpaqueTensor.from_hp`` does."""
    parts = _Int4Parts()
    block, like = [1, INT4_GROUP], (torch.int32, _INT4_LEAST, _INT4_LARGEST)
    scale, zero = parts.choose(
        weight, parts.mapping, block, *like, _INT4_EPSILON, None, weight.dtype
    )
    numbers = parts.quantize(weight, block, scale, zero, *like)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers, 1)  # noqa: SLF001
    rows = weight.shape[0]
    constants = parts.pack(scale.reshape(rows, -1), zero.reshape(rows, -1), scale.dtype)
    layer.weight = frozen(packed)
    layer.register_buffer("scale_and_zero", constants, persistent=False)


def _dequantize_int4(layer: Any) -> torch.Tensor:
    """Return the weight, by the kernel itself: products with the rows of a unit matrix."""
    unit = torch.eye(layer.in_features, dtype=layer.compute_dtype, device=layer.weight.device)
    bias, layer.bias = layer.bias, None
    try:
        columns: torch.Tensor = layer(unit)
    finally:
        layer.bias = bias
    return columns.T.contiguous()


def _dequantize(layer: Any) -> torch.Tensor:
    dequantized: torch.Tensor = layer.weight.dequantize()
    return dequantized


class _Int4Parts:
    """What torchao quantises to four bits by."""

    def __init__(self) -> None:
        from torchao.quantization import quant_primitives
        from torchao.quantization.utils import pack_tinygemm_scales_and_zeros

        self.mapping = quant_primitives.MappingType.ASYMMETRIC
        self.choose = quant_primitives._choose_qparams_affine_tinygemm  # noqa: SLF001
        self.quantize = quant_primitives._quantize_affine_tinygemm  # noqa: SLF001
        self.pack = pack_tinygemm_scales_and_zeros


def config_of(quantization: Quantization) -> Any:
    """Return torchao's own name for what ``qat`` trains for and a conversion makes.

    Raises UnsupportedError: torchao is not installed.
    """
    torchao, size = require_torchao(), quantization.group_size
    return torchao.Int8DynamicActivationIntxWeightConfig(
        weight_dtype={"int8": torch.int8, "int4": torch.int4}[quantization.scheme],
        weight_granularity=torchao.PerGroup(size) if size else torchao.PerAxis(0),
    )


def require_torchao() -> Any:
    """Return the package ``torchao.quantization``."""
    quiet_libraries()
    try:
        import torchao.quantization
        import torchao.quantization.qat
    except ImportError as error:
        raise UnsupportedError(
            "integers for weights are torchao's, which is not installed; pip install "
            "'brimful[qat]', or use weights in bf16, fp16 or fp32"
        ) from error
    return torchao.quantization


def _fill_dynamic(quantization: Quantization, layer: Any, weight: torch.Tensor) -> None:
    layer.weight = frozen(weight)
    require_torchao().quantize_(layer, config_of(quantization))


INT8_ONLY = Format(_linear, _fill_int8, _dequantize, None)
INT4_ONLY = Format(_linear_int4, _fill_int4, _dequantize_int4, None)
INT8_DYNAMIC, INT4_DYNAMIC = (
    Format(_linear, partial(_fill_dynamic, quantization), _dequantize, None)
    for quantization in (
        Quantization(scheme="int8", group_size=ROW),
        Quantization(scheme="int4", group_size=GROUP_SIZE),
    )
)
