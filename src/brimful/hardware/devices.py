"""Rows of the table as devices to plan for."""

from functools import cache

from brimful.hardware.cluster import Device, MatrixRates
from brimful.hardware.cuda_chips import chips, version_of
from brimful.hardware.datasheets import Datasheet, DatasheetRates, cited, datasheets, is_built_in
from brimful.hardware.usable import usable_memory
from brimful.techniques.kernel_support import FIRST_OF_AMD

NO_BF16 = "no units for bf16: PyTorch emulates it slowly, at a rate that is unknown; use fp16"
"""What happens on a GPU before Ampere."""
_SAME_SIZE = (0.85, 1.02)
"""Reported total over the number on the box: one name is used for cards of several sizes (RTX 3060
of 8 and 12 GB, RTX 3080 of 10 and 12 GB), and the size tells them apart."""


@cache
def _gpus() -> dict[str, Device]:
    sheets = datasheets().items()
    return {name: _device(name, sheet) for name, sheet in sheets if is_modelled(sheet)}


def gpus() -> dict[str, Device]:
    """Return every GPU that can be planned for, as an uncalibrated device."""
    return dict(_gpus())


def cards(instead_of: str = "") -> list[Device]:
    """List the GPUs that somebody could put in place of another, smallest first.

    None that is built in, and none of another maker: what was installed for CUDA runs on AMD's as
    little as ROCm's on others.

    ``instead_of``: that GPU; empty, or of no maker known: one of NVIDIA's.
    """
    sheets = datasheets()
    is_amd = instead_of in sheets and not has_cuda(sheets[instead_of])
    found = [
        device
        for name, device in _gpus().items()
        if not is_built_in(name)
        and (device.capability >= FIRST_OF_AMD) == is_amd
        and is_modelled(sheets[name])
    ]
    return sorted(found, key=lambda device: device.usable_bytes)


def has_cuda(sheet: Datasheet) -> bool:
    """Whether CUDA's kernels run on it."""
    return sheet.maker == "NVIDIA"


def is_modelled(sheet: Datasheet) -> bool:
    """Whether it is known which kernels PyTorch runs on it: of AMD's targets on few."""
    return has_cuda(sheet) or version_of(sheet.capability) in chips()


def reported_as(reported_name: str, *, total_bytes: int) -> Device | None:
    """Find the GPU that ``nvidia-smi`` calls this.

    Returns the device; None where the table does not hold the name, or holds it for another size.
    """
    low, high = _SAME_SIZE
    for name, device in _gpus().items():
        sheet = datasheets()[name]
        fits = low <= total_bytes / sheet.memory_bytes <= high
        if reported_name in sheet.reported_names and fits:
            return device
    return None


def device_rates(rates: DatasheetRates) -> MatrixRates:
    """Return the rates as a device has them, where 0 for fp32 and bf16 is unknown."""
    return MatrixRates(
        fp32=rates.fp32 or 0,
        bf16=rates.bf16 or 0,
        tf32=rates.tf32,
        fp16=rates.fp16,
        fp8=rates.fp8,
        int8=rates.int8,
    )


def _device(name: str, sheet: Datasheet) -> Device:
    memory = usable_memory(sheet)
    emulated = f"; {NO_BF16}" if sheet.matrix_flops_per_s.bf16 == 0 else ""
    return Device(
        name=name,
        description=sheet.description,
        kernels="cuda",
        usable_bytes=memory.num_bytes,
        capability=sheet.capability,
        matrix_flops_per_s=device_rates(sheet.matrix_flops_per_s),
        memory_bytes_per_s=sheet.memory_bytes_per_s,
        op_overhead_s=sheet.op_overhead_s,
        calibrated=False,
        source=f"rates: {cited(sheet, 'matrix_flops_per_s.bf16')}; usable bytes: {memory.why}; "
        f"launch time assumed{emulated}",
    )
