"""Operations of bitsandbytes on the pretend GPU: which are one kernel, and which are several.

bitsandbytes says the shapes of its own operations. Some it makes of others, among them whole copies
of a weight, and those are other ones on CUDA than on a CPU. What each does is done here in parts
that the tape sees, following the library's own code; everything else is one kernel on both.

Of LLM.int8() on CUDA the columns with outliers are not known beforehand; none are counted. Each
would cost two bytes a token and a layer.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch.nn import functional

from brimful.pretend import kernels

_WRITTEN_OUT = torch._C.DispatchKey.CompositeExplicitAutograd  # noqa: SLF001
_NESTED_BLOCK = 256
_DEVICE = "gpu"


def _op(name: str) -> Any:
    return getattr(torch.ops.bitsandbytes, name).default


def _as_written(name: str, *args: Any, **kwargs: Any) -> Any:
    """Run the library's own formula, the one for devices that have no kernel."""
    return _op(name)._op_dk(_WRITTEN_OUT, *args, **kwargs)  # noqa: SLF001


def gemm_4bit(  # noqa: PLR0913, PLR0917 - bitsandbytes'
    a: torch.Tensor,
    b: torch.Tensor,
    shape: list[int],
    absmax: torch.Tensor,
    blocksize: int,
    quant_type: str,
    bias: torch.Tensor | None = None,
    absmax_8bit: torch.Tensor | None = None,
    absmax_code: torch.Tensor | None = None,
    absmax_offset: torch.Tensor | None = None,
) -> torch.Tensor:
    """Multiply by a 4-bit weight; see bitsandbytes' operation of this name.

    The weight is made anew in the type of ``a`` and multiplied. On CUDA kernels that need no copy
    take over for few rows (never more than 1536), by the card; a training step has more.

    Source: ``_dequant_linear_fallback`` in ``backends/cuda/ops.py``,
    ``_gemm_4bit_default_impl`` in ``backends/default/ops.py``.
    """
    if absmax_8bit is not None:
        dequantize = _op("dequantize_blockwise")
        wide = dequantize(absmax_8bit, absmax, absmax_code, _NESTED_BLOCK, torch.float32)
        absmax = wide + absmax_offset
        del wide
    weight = _op("dequantize_4bit")(b, absmax, blocksize, quant_type, shape, a.dtype)
    out: torch.Tensor = functional.linear(a, weight, bias)
    return out


def quantize_4bit(
    a: torch.Tensor, blocksize: int, quant_type: str, storage: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise to four bits; see bitsandbytes' operation of this name.

    One kernel on CUDA, on a CPU the library's formula, which goes through fp32.

    Source: ``quantize_4bit`` in ``backends/cuda/ops.py`` and ``backends/default/ops.py``.
    """
    _make_tables_by_copy()
    if kernels.current() == "cuda":
        return NotImplemented  # type: ignore[no-any-return]  # to the tape: it is one kernel
    out: tuple[torch.Tensor, torch.Tensor]
    try:
        out = _as_written("quantize_4bit", a, blocksize, quant_type, storage)
    finally:
        # Drop what the library keeps for each device: it would outlive the fake mode it was made
        # in. It is a table of 16 numbers, and one of 15.
        from bitsandbytes.backends import utils
        from bitsandbytes.backends.default import ops

        ops._get_4bit_quantize_bounds.cache_clear()  # noqa: SLF001
        for key in [key for key in utils._code_4bit_cache if key[1].type == _DEVICE]:  # noqa: SLF001
            del utils._code_4bit_cache[key]  # noqa: SLF001
    return out


@cache
def _make_tables_by_copy() -> None:
    """Let tables of constants be made on the host: a device without memory cannot take a list."""
    from bitsandbytes import functional as tables

    library: Any = tables
    original = library.get_4bit_type

    def get_4bit_type(typename: str, device: Any = None, blocksize: int = 64) -> Any:
        if device is None or torch.device(device).type != _DEVICE:
            return original(typename, device, blocksize)
        return original(typename, "cpu", blocksize).to(device)

    library.get_4bit_type = get_4bit_type


def int8_vectorwise_quant(
    a: torch.Tensor, threshold: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Quantise rows to int8; see bitsandbytes' operation of this name.

    Source: ``int8_vectorwise_quant`` in ``backends/cuda/ops.py`` and ``backends/default/ops.py``.
    """
    _imitate_products()
    if kernels.current() == "cpu":
        found: tuple[Any, Any, Any] = _as_written("int8_vectorwise_quant", a, threshold)
        return found
    stats = a.new_empty(a.numel() // a.shape[-1], dtype=torch.float32)
    rows = torch.empty_like(a, dtype=torch.int8)
    if threshold == 0.0:
        return rows, stats, None
    outliers = a.abs() >= threshold
    outliers.any()
    return rows, stats, a.new_empty(0, dtype=torch.int64)


def int8_mm_dequant(
    a: torch.Tensor,
    row_stats: torch.Tensor,
    col_stats: torch.Tensor,
    dtype: torch.dtype | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Scale a product of int8; see bitsandbytes' operation of this name.

    Source: ``int8_mm_dequant`` in ``backends/cuda/ops.py``, whose kernel writes fp16 only.
    """
    if kernels.current() == "cpu":
        out: torch.Tensor = _as_written(
            "int8_mm_dequant", a, row_stats, col_stats, dtype=dtype, bias=bias
        )
        return out
    half = torch.empty_like(a, dtype=torch.float16)
    if bias is not None and bias.dtype != torch.float16:
        half.add_(bias)
    return half.to(dtype or torch.float16)


@cache
def _imitate_products() -> None:
    """Let a training product take the way of the imitated device, which the library asks by name.

    Source: ``matmul`` in ``autograd/_functions.py``.
    """
    import bitsandbytes
    from bitsandbytes.autograd import _functions

    package: Any = bitsandbytes
    original = package.matmul

    def matmul(  # noqa: PLR0913, PLR0917 - bitsandbytes'
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor | None = None,
        state: Any = None,
        threshold: float = 0.0,
        bias: torch.Tensor | None = None,
    ) -> Any:
        imitates_cpu = a.device.type == _DEVICE and kernels.current() == "cpu"
        if imitates_cpu and state is not None and state.is_training:
            return _functions.MatMul8bitFp.apply(a, b, out, bias, state)
        return original(a, b, out, state, threshold, bias)

    package.matmul = matmul


_PARTS: dict[str, Callable[..., Any]] = {
    "gemm_4bit": gemm_4bit,
    "quantize_4bit": quantize_4bit,
    "int8_vectorwise_quant": int8_vectorwise_quant,
    "int8_vectorwise_dequant": partial(_as_written, "int8_vectorwise_dequant"),
    "int8_mixed_scaled_mm": partial(_as_written, "int8_mixed_scaled_mm"),
    "int8_scaled_mm": partial(_as_written, "int8_scaled_mm"),
    "int8_mm_dequant": int8_mm_dequant,
}


@cache
def parts_of(func: Any) -> Callable[..., Any] | None:
    """Return what runs an operation of the library in parts; None: it is one kernel.

    The parts are seen by the tape alone, as in a real run by nobody: a mode of the program's, such
    as selective checkpointing, meets the whole operation. They may answer ``NotImplemented``: on
    the imitated device it is one kernel.
    """
    namespace, name = func.name().split("::")
    return _PARTS.get(name) if namespace == "bitsandbytes" else None
