"""What a job runs on, as values. Reading them from files and from the machine is done elsewhere."""

from typing import Literal

import msgspec

from brimful.errors import InputError
from brimful.text.escaping import Line
from brimful.values.job import FP8, Precision


class MatrixRates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dense matrix-multiply rates in FLOP/s (a multiply and an add are two).

    Attributes:
        fp32: On the units that multiply fp32 without TF32; 0: unknown.
        bf16: With fp32 accumulation; 0: unknown, as on a chip that emulates it.
        tf32: 0: the chip has no such units; None: unknown, as in a calibration.
        fp16: With fp32 accumulation; 0 and None as for tf32.
        fp8: With fp32 accumulation; 0 and None as for tf32.
        int8: Operations per second; 0 and None as for tf32.
    """

    fp32: float
    bf16: float
    tf32: float | None = None
    fp16: float | None = None
    fp8: float | None = None
    int8: float | None = None


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One accelerator, or the CPU of this machine standing in for one.

    Attributes:
        name: Its key, e.g. ``h100-80gb`` or ``local``.
        description: What it is, as its maker calls it.
        kernels: Whose kernels run on it: ``cuda`` or ``cpu``.
        usable_bytes: What a program can allocate.
        capability: CUDA compute capability, e.g. 9.0; of AMD's targets their number in the same
            form: gfx942 is 94.2, gfx90a 90.0; 0 for a CPU.
        matrix_flops_per_s: Dense rates: of the datasheet, or measured where ``calibrated``.
        memory_bytes_per_s: Memory bandwidth: of the datasheet, or measured where ``calibrated``.
        op_overhead_s: Host time to launch one operation; measured where ``calibrated``.
        calibrated: Whether rates were measured on this machine.
        source: The datasheet, or when and how the rates were measured.
        copy_bytes_per_s: Bytes that are copied from the host or to it in a second, one way; on a
            CPU from one place in memory to another. Measured; 0: unknown.
    """

    name: Line
    description: Line
    kernels: Literal["cuda", "cpu"]
    usable_bytes: int
    capability: float
    matrix_flops_per_s: MatrixRates
    memory_bytes_per_s: float
    op_overhead_s: float
    calibrated: bool
    source: Line
    copy_bytes_per_s: float = 0.0


class Cluster(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The machine a job runs on: its devices, and what lies between them.

    What one device has no use for (the fields with defaults) is not written for one device.

    Attributes:
        name: The GPU's key as the user gave it: ``local`` or ``h100-80gb``.
        device: One of the devices; all are alike.
        num_devices: How many of them, over all nodes.
        host_ram_bytes: Memory of one node's host; 0 where unknown.
        num_nodes: Hosts.
        devices_per_node: Devices of one host.
        link: Between the devices of a node, e.g. ``nvlink-4``; empty for one device or unknown.
        network: Between nodes, a name of ``data/links``; empty for one node or unknown.
        memory_limit_bytes: What a run may use of each device, which stays as it is; 0: all.
        beside_share: Of each device, what something else takes, for which the limit was set; of
            another kind of device it takes as large a share.
    """

    name: Line
    device: Device
    num_devices: int
    host_ram_bytes: int
    num_nodes: int = 1
    devices_per_node: int = 1
    link: Line = ""
    network: Line = ""
    memory_limit_bytes: int = 0
    beside_share: float = 0.0


def offered_bytes(cluster: Cluster) -> int:
    """Return what a run may use of a device: what a program can allocate, or the limit if less."""
    usable = cluster.device.usable_bytes
    return min(usable, cluster.memory_limit_bytes or usable)


TF32_SHARE = 0.5
"""Of the bf16 rate, where a rate of its own is unknown: so on NVIDIA's datasheets from Ampere to
Blackwell (A100 156 of 312 TFLOP/s, H100 494.7 of 989.4, RTX 4090 82.6 of 165.2)."""
AMPERE = 8.0
"""CUDA GPUs before it have no TF32 and multiply in fp32, as do CPUs; nor have they bf16."""
VOLTA = 7.0
"""CUDA GPUs before it have no Tensor Cores. Their fp16 rates accumulate in fp16, and PyTorch
accumulates in fp32."""


def matrix_rate(device: Device, precision: Precision) -> float:
    """Return the rate in FLOP/s at which this recipe's matrix products run; 0 is unknown.

    On a CPU fp16 is unknown: bf16 has units there that fp16 lacks on many. A GPU without units for
    bf16 emulates it, slowly and at a rate that no datasheet says: unknown too. So is fp8 on a CPU,
    which multiplies in fp32 what was rounded.
    """
    rates = device.matrix_flops_per_s
    if precision == "fp32":
        return rates.fp32
    if precision == "tf32":
        if device.kernels != "cuda" or device.capability < AMPERE:
            return rates.fp32
        return TF32_SHARE * rates.bf16 if rates.tf32 is None else rates.tf32
    if precision.startswith("fp16"):
        return _fp16_rate(device)
    if precision == FP8:
        return rates.fp8 or 0.0
    return rates.bf16


def _fp16_rate(device: Device) -> float:
    """Return the fp16 rate; a calibration measures bf16, and units for both run alike."""
    rates = device.matrix_flops_per_s
    if device.kernels != "cuda" or device.capability < VOLTA:
        return 0.0
    return rates.bf16 if rates.fp16 is None else rates.fp16


def spelled(cluster: Cluster) -> str:
    """Return a cluster as it would be typed: ``4x8xh100-80gb``, ``8xh100-80gb``, ``local``."""
    if cluster.num_nodes > 1:
        return f"{cluster.num_nodes}x{cluster.devices_per_node}x{cluster.name}"
    return f"{cluster.num_devices}x{cluster.name}" if cluster.num_devices > 1 else cluster.name


def check_cluster(cluster: Cluster) -> Cluster:
    """Return the cluster of a plan as it is, or say what is wrong with it."""
    device = cluster.device
    counts = (cluster.num_devices, cluster.num_nodes, cluster.devices_per_node)
    if min(counts) < 1 or counts[0] != counts[1] * counts[2]:
        raise InputError(
            f"cluster.num_devices={counts[0]} is not num_nodes={counts[1]} times "
            f"devices_per_node={counts[2]}; give 1 or more of each, and their product"
        )
    if device.usable_bytes < 1:
        raise InputError(
            f"cluster.device.usable_bytes={device.usable_bytes} leaves no memory; give more than 0"
        )
    if cluster.memory_limit_bytes < 0:
        raise InputError(
            f"cluster.memory_limit_bytes={cluster.memory_limit_bytes} is less than nothing; give 0 "
            f"(all that the device offers) or more"
        )
    if not 0 <= cluster.beside_share < 1:
        raise InputError(
            f"cluster.beside_share={cluster.beside_share} is no share of a device that leaves some "
            f"of it; give 0 (nothing beside) or more, and less than 1"
        )
    if cluster.host_ram_bytes < 0:
        raise InputError(
            f"cluster.host_ram_bytes={cluster.host_ram_bytes} is less than nothing; give 0 "
            f"(unknown) or more"
        )
    rates = msgspec.structs.astuple(device.matrix_flops_per_s)
    for rate in (*rates, device.memory_bytes_per_s, device.op_overhead_s):
        if rate is not None and not 0 <= rate < float("inf"):
            raise InputError(f"cluster.device has a rate of {rate}; give 0 (unknown) or more")
    return cluster
