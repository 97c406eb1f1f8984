"""Seconds of offload: copies between a device and its host, and the update that the host does.

On a GPU copies run over PCIe beside the kernels, one lane each way, so that what counts is what
they take beyond those; the host's update and the copies behind it come when kernels are done. On a
CPU both memories are one, and a copy is done when it is asked for.

Ignored: that copies slow kernels that read memory; that the first copy of a pass has nothing beside
it to hide behind.
"""

from typing import Any, NamedTuple

import numpy as np

from brimful.cost.assumptions import assumptions_for
from brimful.hardware.cluster import Device
from brimful.hardware.datasheets import datasheets


class Copied(NamedTuple):
    """What one optimizer step moves because something is kept on the host, in bytes.

    Attributes:
        to_host: Copied from the device while kernels run: gradients, activations.
        to_device: Copied to it while kernels run: parameters of blocks, activations.
        updated: Copied to the device behind the host's update: parameters that stay there.
        host_traffic: Read and written by that update.
    """

    to_host: float = 0.0
    to_device: float = 0.0
    updated: float = 0.0
    host_traffic: float = 0.0


NOTHING_COPIED = Copied()


def link_bytes_per_s(device: Device) -> float | None:
    """Return how fast a device and its host copy, one way; None where that is unknown.

    Measured where the device was calibrated. Else the datasheet's PCIe link, and of a CPU half of
    what its memory moves, as a copy reads and writes.
    """
    if device.copy_bytes_per_s:
        return device.copy_bytes_per_s
    if device.kernels == "cpu":
        return device.memory_bytes_per_s / 2 or None
    sheet = datasheets().get(device.name)
    links = sheet.links if sheet else ()
    rates = [link.bytes_per_s for link in links if link.kind == "pcie" and link.bytes_per_s]
    return max(rates, default=None)


def copied_seconds(copied: Copied, device: Device, *, num_beside: int, beside_s: Any) -> Any:
    """Return what a step takes longer, a number or [strategies]; None where a rate is unknown.

    ``num_beside``: devices whose updates share a host's memory; each has a link of its own.
    """
    if copied == NOTHING_COPIED:
        return 0.0
    rate = link_bytes_per_s(device)
    if rate is None:
        return None
    if device.kernels == "cpu":
        traffic_s = copied.host_traffic / device.memory_bytes_per_s
        return (copied.to_host + copied.to_device + copied.updated) / rate + traffic_s
    hidden = max(copied.to_host, copied.to_device) / rate
    host_s = num_beside * copied.host_traffic / assumptions_for(device).host_memory_bytes_per_s
    return np.maximum(0.0, hidden - beside_s) + copied.updated / rate + host_s
