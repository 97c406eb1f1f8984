"""Quantised tensors, and what makes them.

A quantiser is Python's (its class and its switches); here is what it allocates.

Source: ``pytorch/csrc/quantizer.cpp`` (``create_tensor``, ``quantize``, ``get_scale_shape`` of each
class), ``csrc/extensions/cast.cpp``, ``bias.cpp``, ``transpose.cpp``.
Shapes: M rows (all leading dimensions together), K columns.
"""

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch

from brimful.errors import UnsupportedError
from brimful.pretend import device
from brimful.pretend.transformer_engine.names import TORCH_TYPES
from brimful.pretend.workspace_call import ceil_div, round_up

_BLOCK = 128
_MX = 32
_NV = 16
NON_TN_SINCE = (10, 0)
"""Capability from which FP8 products of any layout exist, so that no transpose is kept
(``nvte_is_non_tn_fp8_gemm_supported``; not of capability 12.0)."""


def nothing(*_args: Any, **_kwargs: Any) -> None:
    """Write into what was given: most functions allocate nothing."""


def torch_type(dtype: Any) -> torch.dtype:
    """Return PyTorch's type for one of the extension's."""
    return dtype if isinstance(dtype, torch.dtype) else TORCH_TYPES[int(dtype)]


def any_layout() -> bool:
    """Whether the card multiplies FP8 matrices of any layout."""
    capability = device.card().capability
    return NON_TN_SINCE <= capability < (12, 0) or capability > (12, 0)


def made(
    quantizer: Any, shape: Sequence[int], dtype: torch.dtype, where: torch.device | None = None
) -> Any:
    """Return what a quantiser makes of a shape, not filled; without one a plain tensor.

    ``quantizer``: Python's; None: nothing is quantised. ``where``: the device; None: the card.
    """
    where = where or torch.device("cuda")
    if quantizer is None:
        return torch.empty(list(shape), dtype=dtype, device=where)
    kind = type(quantizer).__name__
    if kind not in _KINDS:
        raise UnsupportedError(
            f"Transformer Engine's {kind} is not simulated; use bf16, or one of the recipes "
            "delayed, tensorwise, blockwise, mxfp8 and nvfp4"
        )
    return _KINDS[kind](quantizer, tuple(shape), dtype, where)


def shape_of(x: Any) -> tuple[int, ...]:
    """Return the shape that a tensor stands for, also where only its FP8 transpose is there."""
    transpose = getattr(x, "_transpose", None)
    if transpose is not None and x._data is None:  # noqa: SLF001 - the extension's
        shape = tuple(transpose.shape)
        return (*shape[1:], shape[0])
    return tuple(x.size())


def _bytes(where: torch.device, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.uint8, device=where)


def _fp32(where: torch.device, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float32, device=where)


def _of_classes(
    quantizer: Any, classes: tuple[str, str], shape: tuple[int, ...], dtype: torch.dtype
) -> Any:
    """Return a maker of a quantised tensor, or of its storage alone (``internal``)."""
    te = import_module("transformer_engine.pytorch")
    if quantizer.internal:
        storage = getattr(te, classes[1])
        return lambda **kwargs: storage(**kwargs, quantizer=quantizer, fake_dtype=dtype)
    tensor = getattr(te, classes[0])
    own = {"shape": list(shape), "dtype": dtype}
    return lambda **kwargs: tensor(**kwargs, quantizer=quantizer, **own)


def _per_tensor(
    quantizer: Any, shape: tuple[int, ...], dtype: torch.dtype, where: torch.device
) -> Any:
    """``Float8Quantizer`` and ``Float8CurrentScalingQuantizer``: one scale, and a transpose."""
    free = any_layout()
    data = _bytes(where, *shape) if quantizer.rowwise_usage or free else None
    transpose = None
    if quantizer.columnwise_usage and not free:
        transpose = _bytes(where, *(shape[-1:] + shape[:-1]))
    make = _of_classes(quantizer, ("Float8Tensor", "Float8TensorStorage"), shape, dtype)
    return make(
        data=data,
        fp8_scale_inv=_fp32(where, 1),
        fp8_dtype=quantizer.dtype,
        data_transpose=transpose,
    )


def _in_blocks(
    quantizer: Any, shape: tuple[int, ...], dtype: torch.dtype, where: torch.device
) -> Any:
    """``Float8BlockQuantizer``: blocks of 128, or of 128 by 128, with a scale in fp32 each."""
    rows, columns = math.prod(shape[:-1]), shape[-1]
    square = quantizer.block_scaling_dim == 2  # noqa: PLR2004 - blocks of two dimensions
    tall, wide = ceil_div(rows, _BLOCK), ceil_div(columns, _BLOCK)
    row = column = row_scale = column_scale = None
    if quantizer.rowwise_usage:
        row = _bytes(where, *shape)
        size = (tall, round_up(wide, 4)) if square else (wide, round_up(rows, 4))
        row_scale = _fp32(where, *size)
    if quantizer.columnwise_usage:
        column = _bytes(where, *(shape[-1:] + shape[:-1]))
        size = (wide, round_up(tall, 4)) if square else (tall, round_up(columns, 4))
        column_scale = _fp32(where, *size)
    classes = ("Float8BlockwiseQTensor", "Float8BlockwiseQTensorStorage")
    return _of_classes(quantizer, classes, shape, dtype)(
        rowwise_data=row,
        rowwise_scale_inv=row_scale,
        columnwise_data=column,
        columnwise_scale_inv=column_scale,
        fp8_dtype=quantizer.dtype,
        is_2D_scaled=square,
    )


def _microscaled(
    quantizer: Any, shape: tuple[int, ...], dtype: torch.dtype, where: torch.device
) -> Any:
    """``MXFP8Quantizer``: a byte of scale for 32 elements, along rows and along columns."""
    rows, columns = math.prod(shape[:-1]), shape[-1]
    row = column = row_scale = column_scale = None
    if quantizer.rowwise_usage:
        row = _bytes(where, *shape)
        row_scale = _bytes(where, round_up(rows, 128), round_up(ceil_div(columns, _MX), 4))
    if quantizer.columnwise_usage:
        column = _bytes(where, *shape)
        column_scale = _bytes(where, round_up(ceil_div(rows, _MX), 4), round_up(columns, 128))
    return _of_classes(quantizer, ("MXFP8Tensor", "MXFP8TensorStorage"), shape, dtype)(
        rowwise_data=row,
        rowwise_scale_inv=row_scale,
        columnwise_data=column,
        columnwise_scale_inv=column_scale,
        fp8_dtype=quantizer.dtype,
        with_gemm_swizzled_scales=False,
    )


def _in_fours(
    quantizer: Any, shape: tuple[int, ...], dtype: torch.dtype, where: torch.device
) -> Any:
    """``NVFP4Quantizer``: half a byte an element, a byte of scale for 16, a largest value."""
    rows, columns = math.prod(shape[:-1]), shape[-1]
    row = column = row_scale = column_scale = row_most = column_most = None
    if quantizer.rowwise_usage:
        row = _bytes(where, *shape[:-1], columns // 2)
        row_scale = _bytes(where, round_up(rows, 128), round_up(ceil_div(columns, _NV), 4))
        row_most = _fp32(where, rows if quantizer.row_scaled_nvfp4 else 1)
    if quantizer.columnwise_usage:
        column = _bytes(where, columns, rows // 2)
        column_scale = _bytes(where, round_up(columns, 128), round_up(ceil_div(rows, _NV), 4))
        column_most = _fp32(where, columns if quantizer.row_scaled_nvfp4 else 1)
    return _of_classes(quantizer, ("NVFP4Tensor", "NVFP4TensorStorage"), shape, dtype)(
        rowwise_data=row,
        rowwise_scale_inv=row_scale,
        columnwise_data=column,
        columnwise_scale_inv=column_scale,
        amax_rowwise=row_most,
        amax_columnwise=column_most,
        fp4_dtype=quantizer.dtype,
        with_gemm_swizzled_scales=False,
        row_scaled_nvfp4=quantizer.row_scaled_nvfp4,
        nvfp4_use_4over6=quantizer.nvfp4_use_4over6,
        nvfp4_e4m3_max=quantizer.nvfp4_e4m3_max,
    )


_KINDS: dict[str, Callable[..., Any]] = {
    "Float8Quantizer": _per_tensor,
    "Float8CurrentScalingQuantizer": _per_tensor,
    "Float8BlockQuantizer": _in_blocks,
    "MXFP8Quantizer": _microscaled,
    "NVFP4Quantizer": _in_fours,
}


def through(quantizer: Any, shape: Sequence[int], dtype: torch.dtype) -> Any:
    """Return what a kernel writes: what a quantiser makes, beside a plain one while it works.

    Kernels write FP8 themselves where the scale is known beforehand (delayed scaling); else they
    write the result as it is and what it is quantised to is made from that.
    """
    out = made(quantizer, shape, dtype)
    if quantizer is not None and type(quantizer).__name__ not in _FUSED:
        plain = torch.empty(list(shape), dtype=dtype, device="cuda")
        del plain
    return out


_FUSED = frozenset({"Float8Quantizer", "MXFP8Quantizer"})


def _quantize(tensor: Any, quantizer: Any, output: Any = None, noop: Any = None) -> Any:  # noqa: ARG001
    if output is not None:
        _complete(output, quantizer)
        return output
    source = tensor.contiguous() if isinstance(tensor, torch.Tensor) else tensor
    return made(quantizer, shape_of(source), source.dtype)


def _complete(output: Any, quantizer: Any) -> None:
    """``convert_and_update_tensor``: what a quantiser asks for now and the tensor lacks is made."""
    if not hasattr(output, "_transpose"):
        return
    shape = shape_of(output)
    if quantizer.columnwise_usage and not any_layout():
        if output._transpose is None:  # noqa: SLF001 - the extension's
            output._transpose = _bytes(torch.device("cuda"), *(shape[-1:] + shape[:-1]))  # noqa: SLF001
        output._transpose_invalid = False  # noqa: SLF001
    if output._data is None and (quantizer.rowwise_usage or any_layout()):  # noqa: SLF001
        output._data = _bytes(torch.device("cuda"), *shape)  # noqa: SLF001


def _dequantize(tensor: Any, dtype: Any) -> torch.Tensor:
    return torch.empty(shape_of(tensor), dtype=torch_type(dtype), device="cuda")


def _split(
    tensor: torch.Tensor,
    sections: Sequence[int],
    quantizers: Sequence[Any],
    disable_bulk_allocation: bool = False,  # noqa: ARG001, FBT001, FBT002
) -> list[Any]:
    """``split_quantize``: in one allocation or in several, the bytes are the same."""
    width = tensor.shape[1:]
    dtype = tensor.dtype
    return [made(q, (n, *width), dtype) for n, q in zip(sections, quantizers, strict=True)]


def _with_bias_gradient(gradient: torch.Tensor, quantizer: Any) -> list[Any]:
    """``bgrad_quantize``: the sum over rows, and the quantised gradient."""
    rows = gradient.reshape(-1, gradient.shape[-1])
    return [rows.sum(0), made(quantizer, gradient.shape, gradient.dtype)]


def _transpose(tensor: torch.Tensor, dtype: Any = None, *, out: Any = None) -> Any:  # noqa: ARG001
    if out is not None:
        return out
    shape = (tensor.shape[-1], *tensor.shape[:-1])
    return torch.empty(shape, dtype=torch.uint8, device=tensor.device)


def _empty(
    quantizer: Any,
    shape: Sequence[int],
    dtype: torch.dtype,
    where: torch.device,
    pin_memory: bool = False,  # noqa: ARG001, FBT001, FBT002
) -> Any:
    return made(quantizer, shape, dtype, where)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "quantize": _quantize,
    "dequantize": _dequantize,
    "create_empty_quantized_tensor": _empty,
    "split_quantize": _split,
    "multi_tensor_quantize": lambda tensors, quantizers: [
        _quantize(x, q) for x, q in zip(tensors, quantizers, strict=True)
    ],
    "bgrad_quantize": _with_bias_gradient,
    "fp8_transpose": _transpose,
    "compute_amax": nothing,
    "fused_amax_and_scale_update_after_reduction": nothing,
    "multi_tensor_compute_scale_and_scale_inv": nothing,
    "fp8_block_scaling_compute_partial_amax": nothing,
    "fp8_block_scaling_partial_cast": nothing,
    "mxfp8_scaling_compute_partial_amax": nothing,
    "mxfp8_scaling_partial_cast": nothing,
    "swizzle_scales_for_gemm_": nothing,
}
