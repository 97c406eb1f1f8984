"""The chips of CUDA cards: what the sizes of reductions over many blocks depend on."""

from functools import cache
from importlib import resources

import msgspec

from brimful.hardware.cluster import Device

Version = tuple[int, int]
"""Compute capability as CUDA counts it: major, minor."""
_FILE = "data/workspaces/devices.json"


class Multiprocessors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a capability's chip has, as sizes of multi-block reductions depend on it.

    Attributes:
        card: The card that stands for the capability.
        num_multiprocessors: Its streaming multiprocessors.
        threads_per_multiprocessor: Resident threads of each.
        shared_bytes_per_block: Shared memory that one block may ask for.
        source: Where these were taken from.
    """

    card: str
    num_multiprocessors: int
    threads_per_multiprocessor: int
    shared_bytes_per_block: int
    source: str


def version_of(capability: float) -> Version:
    """Return a compute capability in its two parts: 8.6 is (8, 6)."""
    major, minor = divmod(round(capability * 10), 10)
    return major, minor


def has_known_kernels(device: Device) -> bool:
    """Whether a device can be imitated: of a CUDA card its capability has to be in the table."""
    return device.kernels != "cuda" or version_of(device.capability) in chips()


@cache
def chips() -> dict[Version, Multiprocessors]:
    """Read the chips: compute capability to multiprocessors."""
    data = resources.files("brimful").joinpath(_FILE).read_bytes()
    table = msgspec.json.decode(data, type=dict[str, Multiprocessors])
    return {
        (int(major), int(minor)): value
        for name, value in table.items()
        for major, minor in (name.split("."),)
    }
