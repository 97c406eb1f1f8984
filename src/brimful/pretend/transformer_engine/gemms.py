"""Products of matrices by cuBLASLt, whose workspace Python hands over.

Source: ``pytorch/csrc/extensions/gemm.cpp`` (``getGemmOutputShape``, ``gemm``,
``te_general_grouped_gemm``), ``common/util/multi_stream.cpp``.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from brimful.pretend.transformer_engine.quantizing import made, shape_of, torch_type

_STREAMS = 4
"""``nvte_get_num_compute_streams``: on which a group's products run, with a workspace each."""


def _output_shape(a: Sequence[int], transposed_a: Any, b: Sequence[int], transposed_b: Any) -> Any:
    """``getGemmOutputShape``."""
    first = [b[-1]] if transposed_b else list(b[:-1])
    return [*first, math.prod(a[:-1]) if transposed_a else a[-1]]


def _gemm(  # noqa: PLR0913, PLR0917 - the signature is the extension's
    a: Any,
    transposed_a: bool,  # noqa: FBT001
    b: Any,
    transposed_b: bool,  # noqa: FBT001
    out: Any,
    quantizer: Any,
    dtype: Any,
    bias: torch.Tensor | None,
    bias_type: Any,
    gelu: bool,  # noqa: FBT001
    gelu_input: torch.Tensor | None,
    grad: bool,  # noqa: FBT001
    *_workspace: Any,
    extra_output: Any = None,
    **_how: Any,
) -> tuple[Any, Any, Any, Any]:
    """``generic_gemm``: output, gradient of the bias, what went into the activation, one more."""
    given = shape_of(b)
    shape = _output_shape(shape_of(a), transposed_a, given, transposed_b)
    wanted = torch_type(dtype) if dtype is not None else a.dtype
    if out is None:
        out = made(quantizer, shape, wanted)
    plain = None
    if quantizer is not None and type(quantizer).__name__ != "Float8Quantizer":
        plain = torch.empty(shape, dtype=wanted, device="cuda")
    bias_gradient = None
    if bias is not None and grad:
        bias_gradient = torch.empty(given[-1], dtype=out.dtype, device="cuda")
    if gelu and not grad:
        is_quantised = not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor)
        kind = torch_type(bias_type) if is_quantised else out.dtype
        gelu_input = torch.empty(shape, dtype=kind, device="cuda")
    del plain
    return out, bias_gradient, gelu_input if gelu else None, extra_output


def _grouped(  # noqa: PLR0913, PLR0917 - the signature is the extension's
    a: Any,
    transposed_a: bool,  # noqa: FBT001
    b: Any,
    transposed_b: bool,  # noqa: FBT001
    out: Any,
    dtype: Any,
    _splits: Any,
    bias: Any,
    *_how: Any,
) -> Any:
    """``te_general_grouped_gemm``: Python hands over outputs and gradients of biases."""
    if out is None:
        for x, y in zip(a, b, strict=True):
            shape = _output_shape(shape_of(x), transposed_a, shape_of(y), transposed_b)
            torch.empty(shape, dtype=torch_type(dtype), device="cuda")
    return bias


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "generic_gemm": _gemm,
    "te_general_grouped_gemm": _grouped,
    "get_num_cublas_streams": lambda: _STREAMS,
    "get_cublasLt_version": lambda: 130100,
    "get_cudnn_version": lambda: 91600,
    "ubuf_built_with_mpi": lambda: False,
    "nvte_built_with_cublasmp": lambda: False,
    "device_supports_multicast": lambda *_: True,
    "get_stream_priority_range": lambda *_: (0, -5),
}
