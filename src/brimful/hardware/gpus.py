"""From what the user calls the hardware to a Cluster."""

import re

import msgspec

from brimful.errors import InputError, UnsupportedError, unknown_name
from brimful.hardware.cluster import Cluster, Device
from brimful.hardware.datasheets import gpus
from brimful.hardware.probe import host_ram_bytes, probe_local
from brimful.units import format_bytes

__all__ = ["LOCAL", "gpus", "load_cluster"]

LOCAL = "local"
_COUNTED = re.compile(r"(?P<counts>(?:\d+x){1,2})(?P<gpu>.+)")
_MAX_DIGITS = 9


def load_cluster(name: str, *, memory_limit_bytes: int | None) -> Cluster:
    """Resolve what the user called the hardware.

    Args:
        name: ``local``, a GPU such as ``h100-80gb``, or ``1xh100-80gb``.
        memory_limit_bytes: Bytes the run may use of what the device offers; None for all of them.

    Returns:
        One device and its host.

    Raises:
        UnknownNameError: No such GPU.
        UnsupportedError: More than one device was asked for.
        InputError: No device was asked for, or the limit is not within what the device offers.
    """
    num_devices, gpu = _split(name)
    if gpu != LOCAL and gpu not in gpus():
        raise unknown_name("GPU", gpu, [*gpus(), LOCAL], more="(brimful gpus lists them)")
    if num_devices == 0:
        raise InputError(f"{name} asks for 0 devices; use 1x{gpu}")
    if num_devices > 1:
        raise UnsupportedError(
            f"this version plans for 1 device and {name} asks for {num_devices}; use 1x{gpu}"
        )
    device = probe_local() if gpu == LOCAL else gpus()[gpu]
    return Cluster(
        name=gpu,
        device=_limited(device, memory_limit_bytes),
        num_devices=1,
        host_ram_bytes=host_ram_bytes() if gpu == LOCAL else 0,
    )


def _split(name: str) -> tuple[int, str]:
    """Split ``4x8xh100-80gb`` into 32 and ``h100-80gb``."""
    match = _COUNTED.fullmatch(name.strip().lower())
    if match is None:
        return 1, name.strip().lower()
    num_devices = 1
    for count in match["counts"].rstrip("x").split("x"):
        if len(count) > _MAX_DIGITS:
            raise InputError(f"{name} asks for {count} devices; use 1x{match['gpu']}")
        num_devices *= int(count)
    return num_devices, match["gpu"]


def _limited(device: Device, limit_bytes: int | None) -> Device:
    if limit_bytes is None:
        return device
    if limit_bytes <= 0:
        raise InputError(
            f"a memory limit of {limit_bytes} bytes leaves nothing of the "
            f"{format_bytes(device.usable_bytes)} of {device.name}; give more than 0"
        )
    if limit_bytes > device.usable_bytes:
        raise InputError(
            f"a memory limit of {format_bytes(limit_bytes)} ({limit_bytes} bytes) is over the "
            f"{format_bytes(device.usable_bytes)} ({device.usable_bytes} bytes) that "
            f"{device.name} offers; give that or less"
        )
    return msgspec.structs.replace(device, usable_bytes=limit_bytes)
