"""From what the user calls the hardware to a Cluster."""

import re

import msgspec

from brimful.errors import InputError, UnsupportedError, unknown_name
from brimful.hardware.cluster import Cluster, Device
from brimful.hardware.datasheets import datasheets
from brimful.hardware.devices import gpus
from brimful.hardware.links import assumed_network, network, node_links
from brimful.hardware.probe import host_ram_bytes, probe_local
from brimful.units import format_bytes

__all__ = ["LOCAL", "count_devices", "gpus", "load_cluster"]

LOCAL = "local"
_COUNTED = re.compile(r"(?P<counts>(?:\d+x){1,2})(?P<gpu>.+)")
_MAX_DIGITS = 9


def load_cluster(
    name: str,
    *,
    memory_limit_bytes: int | None,
    card_memory_bytes: int | None = None,
    network_name: str = "",
) -> Cluster:
    """Resolve what the user called the hardware.

    Args:
        name: ``local``, a GPU such as ``h100-80gb``, ``8xh100-80gb``, or nodes and devices per
            node as in ``4x8xh100-80gb``.
        memory_limit_bytes: Bytes the run may use of what the device offers; None for all of them.
        card_memory_bytes: Bytes the device offers, where that is not what the table says.
        network_name: What lies between nodes, of ``links.network_names``; empty: that of the
            maker's own systems with this GPU, where there are any.

    Returns:
        Its devices and hosts. Several of ``local`` without a GPU are processes that share its
        memory evenly.

    Raises:
        UnknownNameError: No such GPU, or no such network.
        UnsupportedError: A GPU whose kernels this version does not know.
        InputError: No device was asked for, or the limit is not within what the device offers.
    """
    num_nodes, per_node, gpu = _split(name)
    _check_name(gpu)
    if num_nodes * per_node == 0:
        raise InputError(f"{name} asks for 0 devices; use 1x{gpu}")
    if network_name:
        network(network_name, devices_per_node=per_node)
    device = _part_of_host(probe_local(), per_node) if gpu == LOCAL else gpus()[gpu]
    if card_memory_bytes is not None:
        device = _sized(device, card_memory_bytes)
    return Cluster(
        name=gpu,
        device=device,
        num_devices=num_nodes * per_node,
        host_ram_bytes=host_ram_bytes() if gpu == LOCAL else 0,
        num_nodes=num_nodes,
        devices_per_node=per_node,
        link=_link(gpu) if per_node > 1 else "",
        network=(network_name or assumed_network(device.name)) if num_nodes > 1 else "",
        memory_limit_bytes=_checked_limit(device, memory_limit_bytes),
    )


def count_devices(name: str) -> int:
    """Return how many devices a name of ``load_cluster`` asks for.

    Raises:
        InputError: A number is absurd.
    """
    num_nodes, per_node, _ = _split(name)
    return num_nodes * per_node


def _part_of_host(device: Device, num_processes: int) -> Device:
    """Return a device as it is, or a CPU's share of the host's memory."""
    if device.kernels != "cpu":
        return device
    return msgspec.structs.replace(device, usable_bytes=device.usable_bytes // num_processes)


def _check_name(gpu: str) -> None:
    if gpu == LOCAL or gpu in gpus():
        return
    if gpu in datasheets():
        raise UnsupportedError(
            f"{gpu} runs ROCm kernels, and this version knows what CUDA kernels allocate; give one "
            "of NVIDIA's GPUs (brimful gpus lists them)"
        )
    raise unknown_name("GPU", gpu, [*gpus(), LOCAL], more="(brimful gpus lists them)")


def _link(gpu: str) -> str:
    """Name the fastest link of a GPU; of this machine's it is unknown."""
    return "" if gpu == LOCAL else node_links(datasheets()[gpu])[0].name


def _split(name: str) -> tuple[int, int, str]:
    """Split ``4x8xh100-80gb`` into 4 nodes, 8 devices each, and ``h100-80gb``."""
    match = _COUNTED.fullmatch(name.strip().lower())
    if match is None:
        return 1, 1, name.strip().lower()
    counts = match["counts"].rstrip("x").split("x")
    for count in counts:
        if len(count) > _MAX_DIGITS:
            raise InputError(f"{name} asks for {count} devices; use 1x{match['gpu']}")
    per_node = int(counts[-1])
    return int(counts[0]) if len(counts) > 1 else 1, per_node, match["gpu"]


def _sized(device: Device, num_bytes: int) -> Device:
    if num_bytes <= 0:
        raise InputError(f"a card of {num_bytes} bytes is none; give --card-memory more than 0")
    source = f"{device.source}; usable bytes as given"
    return msgspec.structs.replace(device, usable_bytes=num_bytes, source=source)


def _checked_limit(device: Device, limit_bytes: int | None) -> int:
    if limit_bytes is None:
        return 0
    if limit_bytes <= 0:
        raise InputError(
            f"a memory limit of {limit_bytes} bytes leaves nothing of the "
            f"{format_bytes(device.usable_bytes)} of {device.name}; give more than 0"
        )
    if limit_bytes > device.usable_bytes:
        raise InputError(
            f"a memory limit of {format_bytes(limit_bytes)} ({limit_bytes} bytes) is over the "
            f"{format_bytes(device.usable_bytes)} ({device.usable_bytes} bytes) that "
            f"{device.name} offers; give that or less, or another size of the card by --card-memory"
        )
    return limit_bytes
