"""What a job runs on, as values. Reading them from files and from the machine is done elsewhere."""

from typing import Literal

import msgspec

from brimful.errors import InputError, UnsupportedError
from brimful.job import Precision


class MatrixRates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dense matrix-multiply rates in FLOP/s (a multiply and an add are two); 0 is unknown."""

    fp32: float
    bf16: float


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One accelerator, or the CPU of this machine standing in for one.

    Attributes:
        name: Its key, e.g. ``h100-80gb`` or ``local``.
        description: What it is, as its maker calls it.
        kernels: Whose kernels run on it: ``cuda`` or ``cpu``.
        usable_bytes: What a program can allocate, or the limit that the user set.
        capability: CUDA compute capability, e.g. 9.0; 0 for a CPU.
        matrix_flops_per_s: Dense rates: of the datasheet, or measured where ``calibrated``.
        memory_bytes_per_s: Memory bandwidth: of the datasheet, or measured where ``calibrated``.
        op_overhead_s: Host time to launch one operation; measured where ``calibrated``.
        calibrated: Whether rates were measured on this machine.
        source: The datasheet, or when and how the rates were measured.
    """

    name: str
    description: str
    kernels: Literal["cuda", "cpu"]
    usable_bytes: int
    capability: float
    matrix_flops_per_s: MatrixRates
    memory_bytes_per_s: float
    op_overhead_s: float
    calibrated: bool
    source: str


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine a job runs on: so far one device and its host.

    Attributes:
        name: How the user asked for it: ``local`` or ``h100-80gb``.
        device: The device.
        num_devices: How many of them (1 in this version).
        host_ram_bytes: Memory of the host; 0 where unknown.
    """

    name: str
    device: Device
    num_devices: int
    host_ram_bytes: int


TF32_SHARE = 0.5
"""Of the bf16 rate: so on every datasheet of NVIDIA from Ampere to Blackwell (A100 156 of 312
TFLOP/s, H100 494.7 of 989.4, RTX 4090 82.6 of 165.2)."""
TF32_CAPABILITY = 8.0
"""CUDA GPUs before Ampere have no TF32 and multiply in fp32, as do CPUs."""


def matrix_rate(device: Device, precision: Precision) -> float:
    """Return the rate in FLOP/s at which this recipe's matrix products run; 0 is unknown.

    On a GPU with units for both, fp16 runs as fast as bf16. On a CPU it does not (bf16 has units
    that fp16 lacks on many) and its rate is unknown.
    """
    rates, is_cuda = device.matrix_flops_per_s, device.kernels == "cuda"
    if precision == "fp32":
        return rates.fp32
    if precision == "tf32":
        has_tf32 = is_cuda and device.capability >= TF32_CAPABILITY
        return TF32_SHARE * rates.bf16 if has_tf32 else rates.fp32
    if precision.startswith("fp16"):
        return rates.bf16 if is_cuda else 0.0
    return rates.bf16


def check_cluster(cluster: Cluster) -> Cluster:
    """Return the cluster as it is, or say what is wrong with it.

    Raises:
        UnsupportedError: It has more than one device.
        InputError: Its device has no memory, or a rate is below 0.
    """
    device = cluster.device
    if cluster.num_devices != 1:
        raise UnsupportedError(
            f"cluster.num_devices={cluster.num_devices} and this version plans for 1; write 1"
        )
    if device.usable_bytes < 1:
        raise InputError(
            f"cluster.device.usable_bytes={device.usable_bytes} leaves no memory; give more than 0"
        )
    rates = device.matrix_flops_per_s
    for rate in (rates.fp32, rates.bf16, device.memory_bytes_per_s, device.op_overhead_s):
        if not 0 <= rate < float("inf"):
            raise InputError(f"cluster.device has a rate of {rate}; give 0 (unknown) or more")
    return cluster
