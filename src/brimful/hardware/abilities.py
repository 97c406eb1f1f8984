"""What precision and which kernels a GPU really has: pure functions over its datasheet.

Types by compute capability are those of NVIDIA's CUDA C++ Programming Guide ("Arithmetic
Instructions" and the feature table), AMD's those of ROCm's "Data types and precision support".
Attention kernels are what ``kernel_support`` says for a plain decoder.
"""

from functools import cache
from typing import Literal

import msgspec

from brimful.hardware.cluster import AMPERE, VOLTA
from brimful.hardware.datasheets import Datasheet, MatrixType
from brimful.hardware.devices import NO_BF16, has_cuda, is_modelled
from brimful.models.config import load_model
from brimful.techniques.kernel_support import Place, runnable
from brimful.values.job import Job, Precision, plain_job
from brimful.values.strategy import Attention

TENSOR_CORES_SINCE: dict[MatrixType, float] = {
    "fp16": VOLTA, "int8": 7.5, "bf16": AMPERE, "tf32": AMPERE, "fp8": 8.9,
}  # fmt: skip
"""The first compute capability whose Tensor Cores multiply a type; fp32 none does."""
MATRIX_CORES: dict[str, tuple[MatrixType, ...]] = {
    "gfx908": ("fp32", "fp16", "bf16", "int8"),
    "gfx90a": ("fp32", "fp16", "bf16", "int8"),
    "gfx942": ("fp32", "tf32", "fp16", "bf16", "fp8", "int8"),
    "gfx950": ("fp32", "fp16", "bf16", "fp8", "int8"),
    "gfx1100": ("fp16", "bf16", "int8"),
    "gfx1151": ("fp16", "bf16", "int8"),
    "gfx1201": ("fp16", "bf16", "fp8", "int8"),
}
"""Types that the matrix cores of AMD's targets multiply."""
FUSED: tuple[Attention, ...] = ("flash", "efficient", "cudnn", "flex")
"""Attention kernels to ask for; ``eager`` runs everywhere, ``sdpa`` picks among the first three."""
NO_TENSOR_CORES = (
    "no Tensor Cores: 16 bits save memory and no time, and at what rate PyTorch multiplies fp16 "
    "with fp32 accumulation is unknown"
)
ROCM = (
    "ROCm's kernels take no more than CUDA's by PyTorch's source, which were measured; they were "
    "not, and answers are by CUDA's"
)
ROCM_UNKNOWN = "PyTorch has no fused attention on it: it is listed, and cannot be planned for"
_PLAIN_MODEL = "llama-3.1-8b"
"""Heads of 128: within what every kernel takes."""


class Abilities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a GPU really has.

    Attributes:
        tensor_core_types: Types that its Tensor Cores (AMD: matrix cores) multiply.
        bf16: Whether bf16 has units of its own or is emulated.
        tf32: Whether it has units for TF32.
        fp8: Whether it has units for fp8.
        attention_16bit: Fused kernels that take 16-bit queries; None: unknown.
        attention_fp32: Fused kernels that take fp32 queries; None: unknown.
        notes: What to know before choosing a recipe.
    """

    tensor_core_types: tuple[MatrixType, ...]
    bf16: Literal["native", "emulated"]
    tf32: bool
    fp8: bool
    attention_16bit: tuple[Attention, ...] | None
    attention_fp32: tuple[Attention, ...] | None
    notes: tuple[str, ...]


def abilities(sheet: Datasheet) -> Abilities:
    """Return what a GPU of the table really has."""
    types = tensor_core_types(sheet)
    native = "bf16" in types
    return Abilities(
        tensor_core_types=types,
        bf16="native" if native else "emulated",
        tf32="tf32" in types,
        fp8="fp8" in types,
        attention_16bit=attention_kernels(sheet, "bf16" if native else "fp16"),
        attention_fp32=attention_kernels(sheet, "fp32"),
        notes=_notes(sheet, types),
    )


def tensor_core_types(sheet: Datasheet) -> tuple[MatrixType, ...]:
    """Return the types that a GPU's Tensor Cores (AMD: matrix cores) multiply.

    Source: by compute capability or target, not by rates: a rate may be that of CUDA cores.
    """
    if not has_cuda(sheet):
        return MATRIX_CORES[sheet.target]
    return tuple(kind for kind, since in TENSOR_CORES_SINCE.items() if sheet.capability >= since)


def attention_kernels(sheet: Datasheet, precision: Precision) -> tuple[Attention, ...] | None:
    """Return the fused attention kernels of PyTorch that train a plain decoder on a GPU.

    Returns their names in PyTorch's order; None where they are not known.
    """
    if not is_modelled(sheet):
        return None
    here = runnable(_plain(precision), Place("cuda", sheet.capability))
    return tuple(name for name in FUSED if name in here)


@cache
def _plain(precision: Precision) -> Job:
    return plain_job(load_model(_PLAIN_MODEL), precision=precision)


def _notes(sheet: Datasheet, types: tuple[MatrixType, ...]) -> tuple[str, ...]:
    said = (
        (not is_modelled(sheet), ROCM_UNKNOWN),
        (is_modelled(sheet) and not has_cuda(sheet), ROCM),
        ("bf16" not in types, NO_BF16),
        (not types, NO_TENSOR_CORES),
    )
    return tuple(note for holds, note in said if holds)
