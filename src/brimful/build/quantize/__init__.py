"""Quantised linear layers that stand in for a frozen base's own: one file per format.

A layer is swapped on ``meta``, where its weight still has its full shape, and filled when the model
has memory: one weight after the other, so that one full weight at a time exists.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from brimful.build.quantize import int8, llm_int8, nf4, torchao
from brimful.build.quantize.base import Format, frozen
from brimful.errors import UnsupportedError
from brimful.values.job import Base
from brimful.values.strategy import DEFAULT_FSDP

Held = Base | Literal["torchao-int8", "torchao-int4", "int8-dynamic", "int4-dynamic"]
"""Bases of adapters, and formats that are only read."""
FORMATS: dict[Held, Format] = {
    "nf4": nf4.NF4,
    "nf4-double": nf4.NF4_DOUBLE,
    "int8": int8.INT8,
    "llm-int8": llm_int8.LLM_INT8,
    "torchao-int8": torchao.INT8_ONLY,
    "torchao-int4": torchao.INT4_ONLY,
    "int8-dynamic": torchao.INT8_DYNAMIC,
    "int4-dynamic": torchao.INT4_DYNAMIC,
}
_FORMAT, _TRANSPOSED, _SHAPE = "brimful_format", "brimful_transposed", "brimful_shape"
"""Attributes of a swapped layer: its format, whether it replaced one of [in, out] weights, and
[out, in] of the weight in full."""


def swap(model: nn.Module, base: Held, *, dtype: torch.dtype, keeps: Callable[[str], bool]) -> None:
    """Replace linear layers by quantised ones on ``meta``, in place.

    ``base``: one of ``FORMATS``. ``dtype``: what the layers compute in; their biases have it.
    ``keeps``: tells by its path whether a layer is left as it is. Raises UnsupportedError: the
    format's package is not installed.
    """
    for name, layer in list(model.named_modules()):
        if (type(layer) is nn.Linear or isinstance(layer, Conv1D)) and not keeps(name):
            model.set_submodule(name, _swapped(layer, base, dtype))


def _swapped(layer: nn.Module, base: Held, dtype: torch.dtype) -> nn.Module:
    transposed = isinstance(layer, Conv1D)
    rows, columns = reversed(layer.weight.shape) if transposed else layer.weight.shape
    swapped = FORMATS[base].linear(columns, rows, layer.bias is not None, dtype)
    if layer.bias is not None:
        swapped.bias = nn.Parameter(layer.bias.to(dtype), requires_grad=False)
    setattr(swapped, _FORMAT, base)
    setattr(swapped, _TRANSPOSED, transposed)
    setattr(swapped, _SHAPE, torch.Size((rows, columns)))
    swapped.requires_grad_(requires_grad=False)
    return swapped


def is_quantized(module: nn.Module) -> bool:
    """Whether a module's weight is for ``fill`` to make; its bias is an ordinary parameter."""
    return hasattr(module, _FORMAT)


def full_shape(module: nn.Module) -> torch.Size:
    """Return the shape of the weight that ``fill`` takes."""
    shape: torch.Size = getattr(module, _SHAPE)
    return torch.Size(reversed(shape)) if getattr(module, _TRANSPOSED) else shape


def pack(model: nn.Module, stored: torch.dtype | None) -> None:
    """Give quantised weights on ``meta`` the shape of what holds them, so that it is sharded.

    ``stored``: the type that their bytes are called, so that they lie in one flat parameter with
    others; None: the format's own. Raises UnsupportedError: a weight's bytes are no such numbers.
    """
    for module in filter(is_quantized, model.modules()):
        packed = FORMATS[getattr(module, _FORMAT)].packed
        assert packed is not None  # check_strategy refused the others
        shape, dtype = packed(*getattr(module, _SHAPE))
        if stored is not None:
            shape, dtype = _called(shape, dtype, stored), stored
        module.weight = frozen(torch.empty(shape, dtype=dtype, device="meta"))


def _called(shape: tuple[int, int], dtype: torch.dtype, stored: torch.dtype) -> tuple[int, int]:
    """Return how many numbers of another type a packed weight's bytes are, one below the other."""
    num_bytes = shape[0] * shape[1] * dtype.itemsize
    if num_bytes % stored.itemsize:
        raise UnsupportedError(
            f"fsdp=1 keeps a quantised weight as numbers of {stored.itemsize} bytes, and one has "
            f"{num_bytes}; use fsdp=2",
            nearest={"fsdp": DEFAULT_FSDP},
        )
    return num_bytes // stored.itemsize, 1


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def fill(module: Any, weight: torch.Tensor) -> None:
    """Quantise a weight into a layer, in place.

    Quantised where it lies, as transformers does: what a device's load needs at most is one full
    weight beside the quantised ones. Random weights and loaded ones are filled alike.

    ``module``: for which ``is_quantized``. ``weight``: of ``full_shape``, laid out as in the layer
    that was replaced, on the device where the module shall live, of any floating-point type.
    """
    rows = weight.T if getattr(module, _TRANSPOSED) else weight
    FORMATS[getattr(module, _FORMAT)].fill(module, rows.to(module.compute_dtype))


def know_states(model: nn.Module) -> None:
    """Let weights that were sharded, and are other parameters since, know what they are read by."""
    for module in filter(is_quantized, model.modules()):
        if (state := getattr(module, "quant_state", None)) is not None:
            module.weight.quant_state = state


def read_by_copies(module: Any) -> None:
    """Let a filled layer compute with copies of its weight, each for as long as it is needed.

    ``module``: for which ``is_quantized``; of a format that can.
    """
    by_copies = FORMATS[getattr(module, _FORMAT)].by_copies
    assert by_copies is not None  # check_offload refused the others
    by_copies(module)


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def dequantize(module: Any) -> torch.Tensor:
    """Return the weight that a filled layer computes with, laid out as in the layer it replaced."""
    rows = FORMATS[getattr(module, _FORMAT)].dequantize(module)
    return rows.T if getattr(module, _TRANSPOSED) else rows
