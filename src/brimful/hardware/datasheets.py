"""The shipped table of GPUs. Owns the file and its schema; knows nothing of this machine."""

from functools import cache
from importlib import resources

import msgspec

from brimful.hardware.cluster import Device, MatrixRates


class Datasheet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the table; see ``Device`` for the fields that it shares.

    Attributes:
        description: What the maker calls it.
        reported_names: What ``nvidia-smi`` calls it, one per driver generation.
        usable_bytes: The driver's total, the most that a program can allocate.
        capability: CUDA compute capability.
        matrix_flops_per_s: Dense rates in FLOP/s; 0 where the chip has no such units.
        memory_bytes_per_s: Memory bandwidth in bytes/s.
        op_overhead_s: Assumed host time to launch one operation, in seconds.
        source: Where each of these values was taken from.
    """

    description: str
    reported_names: tuple[str, ...]
    usable_bytes: int
    capability: float
    matrix_flops_per_s: MatrixRates
    memory_bytes_per_s: float
    op_overhead_s: float
    source: str


@cache
def datasheets() -> dict[str, Datasheet]:
    """Read the shipped table: name to datasheet."""
    text = resources.files("brimful").joinpath("data/gpus/gpus.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, Datasheet])


def gpus() -> dict[str, Device]:
    """Return every GPU that can be named, as an uncalibrated device."""
    return {name: _device(name, sheet) for name, sheet in datasheets().items()}


def reported_as(reported_name: str) -> Device | None:
    """Find the GPU that ``nvidia-smi`` calls this; None where the table does not hold it."""
    for name, sheet in datasheets().items():
        if reported_name in sheet.reported_names:
            return _device(name, sheet)
    return None


def _device(name: str, sheet: Datasheet) -> Device:
    return Device(
        name=name,
        description=sheet.description,
        kernels="cuda",
        usable_bytes=sheet.usable_bytes,
        capability=sheet.capability,
        matrix_flops_per_s=sheet.matrix_flops_per_s,
        memory_bytes_per_s=sheet.memory_bytes_per_s,
        op_overhead_s=sheet.op_overhead_s,
        calibrated=False,
        source=sheet.source,
    )
