"""From what the user calls the hardware to a Cluster."""

import re

import msgspec

from brimful.errors import InputError, UnknownMemoryError, UnknownNameError, UnsupportedError
from brimful.hardware.cluster import Cluster, Device
from brimful.hardware.datasheets import datasheets
from brimful.hardware.devices import gpus
from brimful.hardware.links import network, network_between, node_links
from brimful.hardware.names import find_gpu, split_counts, unknown_gpu
from brimful.hardware.probe import host_ram_bytes, probe_local
from brimful.hardware.slices import find_slice, slice_device
from brimful.hardware.usable import is_set_aside, usable_memory
from brimful.units import format_bytes

__all__ = ["LOCAL", "check_gpu", "count_devices", "device_named", "gpus", "load_cluster"]

LOCAL = "local"
_LISTED = re.compile(r"\s*(?:[,+&]|\band\b)\s*")
"""What stands between the kinds of GPU of one machine."""


def load_cluster(
    name: str,
    *,
    memory_limit_bytes: int | None,
    card_memory_bytes: int | None = None,
    network_name: str = "",
) -> Cluster:
    """Resolve what the user called the hardware.

    Args:
        name: ``local``, a GPU such as ``h100-80gb`` in any spelling (``names.find_gpu``),
            ``8xh100-80gb``, or nodes and devices per node as in ``4x8xh100-80gb``.
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
    _refuse_mixed(name)
    num_nodes, per_node, typed = split_counts(name)
    try:
        gpu = LOCAL if typed == LOCAL else find_slice(typed) or check_gpu(typed)
    except UnknownNameError as error:
        raise _for_as_many(error, num_nodes, per_node) from None
    if num_nodes * per_node == 0:
        raise InputError(f"{name} asks for 0 devices; use 1x{gpu}")
    if num_nodes * per_node > 1 and find_slice(typed):
        raise UnsupportedError(
            f"{name} asks for {num_nodes * per_node} slices, and CUDA gives a process one, which "
            f"reaches no other; use one, or whole GPUs",
            nearest={"gpus": gpu},
        )
    if network_name:
        network(network_name, devices_per_node=per_node)
    device = _part_of_host(probe_local(), per_node) if gpu == LOCAL else device_named(gpu)
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
        network=(network_name or network_between(device.name)) if num_nodes > 1 else "",
        memory_limit_bytes=_checked_limit(device, memory_limit_bytes),
    )


def _refuse_mixed(name: str) -> None:
    """Refuse several kinds of GPU in one run, and name as many of the one with the least memory."""
    parts = _LISTED.split(name.strip())
    counted = [split_counts(part) for part in parts]
    kinds = [find_gpu(each.gpu) for each in counted]
    if len(kinds) == 1 or not all(kind in gpus() for kind in kinds):
        return
    num = sum(each.num_nodes * each.per_node for each in counted)
    least = min(kinds, key=_ability)
    raise UnsupportedError(
        f"--gpus {name} mixes devices, and a run has one kind of them in this version; use "
        f"{num}x{least}: all take alike much memory, and wait for the slowest; brimful shop --gpus "
        f"{','.join(parts)!r} lays them beside each other",
        nearest={"gpus": f"{num}x{least}"},
    )


def _ability(gpu: str) -> tuple[int, float]:
    """Order GPUs by the memory on their boxes, and cards of one size by their speed."""
    return datasheets()[gpu].memory_bytes, gpus()[gpu].matrix_flops_per_s.fp16 or 0.0


def _for_as_many(error: UnknownNameError, num_nodes: int, per_node: int) -> UnknownNameError:
    """Return the error for a name with its count, which the nearest GPU has as well."""
    near = error.nearest.get("gpus")
    if near and num_nodes * per_node > 1:
        nodes = f"{num_nodes}x" if num_nodes > 1 else ""
        error.nearest["gpus"] = f"{nodes}{per_node}x{near}"
    return error


def device_named(name: str) -> Device:
    """Return the GPU that a name means, or the slice of one.

    ``name``: in any spelling, without a count. Raises UnknownNameError: None. Raises
    UnsupportedError: one whose kernels this version does not know.
    """
    key = find_slice(name)
    return slice_device(key) if key else gpus()[check_gpu(name)]


def labelled_bytes(name: str, label_bytes: int) -> int:
    """Return what programs have of a GPU with another size on its label.

    ``name``: in any spelling, without a count; of one that no table holds all is taken, and of one
    whose memory is the host's what is less than the machine has: the firmware gave it to the GPU.
    """
    sheet = datasheets().get(find_gpu(name))
    if sheet is not None and is_set_aside(sheet, label_bytes):
        return label_bytes
    share = 1.0 if sheet is None else usable_memory(sheet).num_bytes / sheet.memory_bytes
    return int(label_bytes * share)


def count_devices(name: str) -> int:
    """Return how many devices a name of ``load_cluster`` asks for.

    Raises InputError: a number is absurd.
    """
    num_nodes, per_node, _ = split_counts(name)
    return num_nodes * per_node


def _part_of_host(device: Device, num_processes: int) -> Device:
    """Return a device as it is, or a CPU's share of the host's memory."""
    if device.kernels != "cpu":
        return device
    return msgspec.structs.replace(device, usable_bytes=device.usable_bytes // num_processes)


def check_gpu(name: str) -> str:
    """Return the key of the GPU that a name means, of those that can be planned for.

    ``name``: in any spelling, without a count. Raises UnknownNameError: None. Raises
    UnsupportedError: one whose kernels this version does not know.
    """
    gpu = find_gpu(name)
    if gpu in gpus():
        return gpu
    if gpu:
        raise UnknownMemoryError(
            f"{gpu} is {datasheets()[gpu].target}, where PyTorch has no fused attention, and what "
            "runs in its place is not known to this version; give another GPU (brimful gpus lists "
            "them)"
        )
    raise unknown_gpu(name, known=(LOCAL,))


def _link(gpu: str) -> str:
    """Name the fastest link of a GPU; of this machine's it is unknown."""
    return "" if gpu == LOCAL else node_links(datasheets()[gpu])[0].name


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
