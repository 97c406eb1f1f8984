"""Device memory outside the allocator, each part named, and what it leaves the allocator.

A plan *fits* where it completes without giving anything back though every part takes the most that
was seen; it is *tight* where it completes only if they take the least.
"""

from typing import NamedTuple

from brimful.cost.assumptions import assumptions_for
from brimful.hardware.cluster import Device
from brimful.values.strategy import Strategy


class Part(NamedTuple):
    """Memory that never passes the allocator.

    Attributes:
        name: Whose it is.
        low_bytes: The least that was seen.
        high_bytes: The most.
    """

    name: str
    low_bytes: int
    high_bytes: int


class Room(NamedTuple):
    """What a device has for the allocator.

    Attributes:
        firm_bytes: Where all that lies outside takes the most.
        most_bytes: Where it takes the least.
    """

    firm_bytes: int
    most_bytes: int


def num_groups(strategy: Strategy) -> int:
    """Count the process groups that a device belongs to: one per axis of more than one device."""
    same = strategy.dp_shard * strategy.tp // strategy.ep if strategy.ep > 1 else 1
    degrees = (
        strategy.dp_replicate, strategy.dp_shard, strategy.tp, strategy.pp, strategy.ep, same,
    )  # fmt: skip
    return sum(degree > 1 for degree in degrees)


def parts_outside(device: Device, *, num_groups: int) -> tuple[Part, ...]:
    """List what lies outside the allocator; nothing on a CPU, which has no other memory.

    What the driver takes before any process runs is not among it: ``usable_bytes`` is less that.
    """
    if device.kernels != "cuda":
        return ()
    assumed = assumptions_for(device)
    context = Part("CUDA context and driver", assumed.context_low_bytes, assumed.context_high_bytes)
    if not num_groups:
        return (context,)
    low, high = num_groups * assumed.nccl_low_bytes, num_groups * assumed.nccl_high_bytes
    return context, Part(f"NCCL, process groups: {num_groups}", low, high)


def middle_outside(device: Device, *, num_groups: int) -> int:
    """Return the middle of what lies outside the allocator, in bytes."""
    parts = parts_outside(device, num_groups=num_groups)
    return sum(part.low_bytes + part.high_bytes for part in parts) // 2


def room_of(device: Device, *, num_groups: int = 0) -> Room:
    """Return what a device has for the allocator; never less than nothing."""
    parts = parts_outside(device, num_groups=num_groups)
    low, high = sum(part.low_bytes for part in parts), sum(part.high_bytes for part in parts)
    usable = device.usable_bytes
    return Room(max(0, usable - high), max(0, usable - low))
