"""What this machine is, without importing torch: its GPU if torch can use one, else its CPU."""

import platform
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path, PurePosixPath

import msgspec

from brimful.errors import FileFormatError, RunError
from brimful.hardware.calibration import calibrated, load_calibration
from brimful.hardware.cluster import Device, MatrixRates
from brimful.hardware.devices import reported_as
from brimful.hardware.nvidia_smi import FoundGpu, find_gpus

LOCAL = "local"
NO_GPU = "the plan is for a CUDA GPU and this machine has none; plan --gpus local"
_UNKNOWN_RATES = MatrixRates(fp32=0, bf16=0)


def probe_local() -> Device:
    """Describe this machine as a device, with its stored calibration where there is one.

    Returns the first GPU if there is one and the installed torch can use it, else the CPU. Rates
    are measured (``calibrated``), of the datasheet of a known GPU, or 0: unknown. A calibration of
    another torch version, or one that cannot be read, counts as none; ``source`` says so.
    """
    device = _probe_gpu() or _probe_cpu()
    try:
        calibration = load_calibration(device.description)
    except FileFormatError as error:
        return _noted(device, str(error))
    if calibration is None:
        return device
    if (torch := f"torch {_torch_version()}") not in calibration.versions:
        return _noted(device, f"calibrated with another version than {torch}; calibrate again")
    return calibrated(device, calibration)


def check_present(kernels: str) -> None:
    """Refuse to run on a GPU where torch is sure to find none, without importing it.

    ``kernels``: whose kernels the device has that is to run: ``cuda`` or ``cpu``.
    """
    is_without = sys.platform == "darwin" or _torch_version().endswith("+cpu")
    if kernels == "cuda" and is_without:
        raise RunError(NO_GPU)


def host_ram_bytes() -> int:
    """Return the bytes of RAM that this process may use: the machine's, or its cgroup's limit."""
    import psutil

    total = int(psutil.virtual_memory().total)
    try:
        membership = Path("/proc/self/cgroup").read_text("utf-8")
    except OSError:
        return total  # macOS has no cgroups
    return min(total, *cgroup_limits_bytes(membership, Path("/sys/fs/cgroup")), total)


def cgroup_limits_bytes(membership: str, mount: Path) -> Iterator[int]:
    """Yield every memory limit that binds a process, of its own cgroup and of those above it.

    ``membership``: the text of ``/proc/self/cgroup``, versions 1 and 2 alike.
    """
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, file = mount, "memory.max"
        elif "memory" in controllers.split(","):
            root, file = mount / "memory", "memory.limit_in_bytes"
        else:
            continue
        own = PurePosixPath(path.lstrip("/"))
        for folder in (own, *own.parents):
            try:
                limit = (root / folder / file).read_text("utf-8").strip()
            except OSError:
                continue  # a container sees its own cgroup as the root
            if limit.isdecimal():
                yield int(limit)


@cache  # its file of metadata is a hundred lines, and a command line asks some thirty times
def _torch_version() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def _noted(device: Device, note: str) -> Device:
    return msgspec.structs.replace(device, source=f"{device.source}; {note}")


def _probe_cpu() -> Device:
    import psutil

    num_cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    return Device(
        name=LOCAL,
        description=f"{_cpu_name()}, {num_cores} core{'s' if num_cores > 1 else ''}",
        kernels="cpu",
        usable_bytes=host_ram_bytes(),
        capability=0,
        matrix_flops_per_s=_UNKNOWN_RATES,
        memory_bytes_per_s=0,
        op_overhead_s=0,
        calibrated=False,
        source="usable bytes: RAM or cgroup limit; rates unknown until brimful calibrate has run",
    )


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine() or "CPU"


def _probe_gpu() -> Device | None:
    """Ask the driver for the first visible GPU; None where torch could not use one."""
    if _torch_version().endswith("+cpu"):
        return None
    found = find_gpus(only_first=True)
    return _as_device(found[0]) if found else None


def _as_device(gpu: FoundGpu) -> Device:
    """Return a GPU as a device, with the datasheet's rates where its name is in the table."""
    known = reported_as(gpu.name, total_bytes=gpu.total_bytes)
    return Device(
        name=LOCAL,
        description=gpu.name,
        kernels="cuda",
        usable_bytes=gpu.usable_bytes,
        capability=gpu.capability,
        matrix_flops_per_s=known.matrix_flops_per_s if known else _UNKNOWN_RATES,
        memory_bytes_per_s=known.memory_bytes_per_s if known else 0,
        op_overhead_s=known.op_overhead_s if known else 0,
        calibrated=False,
        source="usable bytes: nvidia-smi, total less reserved; rates: "
        + (f"datasheet of {known.name}" if known else "unknown until brimful calibrate has run"),
    )
