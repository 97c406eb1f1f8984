"""Every assumed value that a prediction rests on, in one place, printed in every report."""

import msgspec

from brimful.cost.efficiency import (
    attention_share,
    card_of,
    efficiency_of,
    half_sizes,
    power_limit_w,
)
from brimful.hardware.cluster import Device
from brimful.hardware.compared import compared, range_of
from brimful.values.plan import Band

_LONG, _HEAD = 8192, 128
"""Tokens of a row and width of a head, for which the share of fused attention is told."""


class Assumptions(msgspec.Struct, frozen=True, kw_only=True):
    """Assumed values; none was measured on the user's machine.

    Attributes:
        time_low: Part of a predicted step time that a tenth of runs take less than.
        time_high: Part of it that a tenth take more than.
        reserved_low: Reserved over allocated bytes, at best.
        reserved_high: The same at worst without a capacity in the way, on one device: with a loss
            over whole logits most of what is reserved is free.
        reserved_high_sharded: The same where parameters are sharded, by FSDP2.
        context_low_bytes: CUDA context and driver, at least.
        context_high_bytes: The same at most.
        nccl_low_bytes: Buffers of a process group, at least.
        nccl_high_bytes: The same at most.
        cpu_process_low_bytes: Resident memory of a process that trains on a CPU, of its libraries
            and all else that is no tensor, at least.
        cpu_process_high_bytes: The same at most.
        cuda_process_low_bytes: Of one that trains on a GPU: CUDA's libraries are in it, at least.
        cuda_process_high_bytes: The same at most.
        host_kept: Share of a CPU's peak that the host's allocator keeps beyond it, at most.
        host_memory_bytes_per_s: What an update on a GPU's host reads and writes in a second.
    """

    time_low: float
    time_high: float
    reserved_low: float
    reserved_high: float
    reserved_high_sharded: float
    context_low_bytes: int
    context_high_bytes: int
    nccl_low_bytes: int
    nccl_high_bytes: int
    cpu_process_low_bytes: int
    cpu_process_high_bytes: int
    cuda_process_low_bytes: int
    cuda_process_high_bytes: int
    host_kept: float
    host_memory_bytes_per_s: float


DATASHEET = Assumptions(
    time_low=compared().others.low,
    time_high=compared().others.high,
    reserved_low=1.0,
    reserved_high=1.55,
    reserved_high_sharded=1.37,
    context_low_bytes=int(0.7e9),
    context_high_bytes=int(1.8e9),
    nccl_low_bytes=int(0.11e9),
    nccl_high_bytes=int(0.69e9),
    cpu_process_low_bytes=int(0.36e9),
    cpu_process_high_bytes=int(0.7e9),
    cuda_process_low_bytes=int(1.0e9),
    cuda_process_high_bytes=int(4.0e9),
    host_kept=0.2,
    host_memory_bytes_per_s=1e11,
)
CALIBRATED = msgspec.structs.replace(DATASHEET, time_low=0.75, time_high=1.25)


def assumptions_for(device: Device) -> Assumptions:
    """Return the assumptions that hold for a device, calibrated or from its datasheet."""
    if device.calibrated:
        return CALIBRATED
    around = range_of(card_of(device).name)
    return msgspec.structs.replace(DATASHEET, time_low=around.low, time_high=around.high)


def around(value: float, device: Device) -> Band:
    """Return the range of what a device's speed decides: seconds, days, money."""
    assumed = assumptions_for(device)
    return Band(low=value * assumed.time_low, high=value * assumed.time_high)


def describe(  # noqa: PLR0913 - a device, and what a run does on it
    device: Device,
    *,
    gathers: bool = False,
    num_groups: int = 0,
    updates_on_host: bool = False,
    parts_experts: bool = False,
    dropout: str = "off",
) -> tuple[str, ...]:
    """Say each assumption in a line, those that do not concern this run left out.

    ``updates_on_host``: whether a GPU's host updates the parameters. ``parts_experts``: whether
    devices part experts among them. ``dropout``: in words.
    """
    assumed = assumptions_for(device)
    lines = [f"dropout {dropout}, every sequence full length, labels unmasked"]
    if parts_experts:
        lines.append("tokens routed evenly: each device's experts get as many rows as it sends")
    lines.append(_rates_words(device, assumed))
    if device.kernels == "cuda":
        high = assumed.reserved_high_sharded if gathers else assumed.reserved_high
        lines.append(
            f"reserved = {assumed.reserved_low} to {high} x allocated (published runs of "
            f"{'FSDP2' if gathers else 'one device'}); workspaces counted: cuBLAS, flash, softmax"
        )
        lines.append(
            f"CUDA context {assumed.context_low_bytes / 1e9:.1f} to "
            f"{assumed.context_high_bytes / 1e9:.1f} GB outside the allocator (published runs)"
        )
        if num_groups:
            lines.append(
                f"NCCL {assumed.nccl_low_bytes / 1e9} to {assumed.nccl_high_bytes / 1e9} GB "
                f"for each of {num_groups} process groups (published runs)"
            )
    lines.append(_host_words(device, assumed))
    if updates_on_host and device.kernels == "cuda":
        rate = assumed.host_memory_bytes_per_s / 1e9
        lines.append(f"the host's update reads and writes {rate:g} GB/s (assumed, not measured)")
    return tuple(lines)


def _host_words(device: Device, assumed: Assumptions) -> str:
    if device.kernels == "cuda":
        low, high = assumed.cuda_process_low_bytes, assumed.cuda_process_high_bytes
        return (
            f"host: a process takes {low / 1e9} to {high / 1e9} GB beside what is counted "
            f"(assumed, not measured)"
        )
    low, high = assumed.cpu_process_low_bytes, assumed.cpu_process_high_bytes
    return (
        f"host: a process takes {low / 1e9} to {high / 1e9} GB beside its tensors, and the "
        f"allocator keeps up to {assumed.host_kept:.0%} of these (validation/host_memory.json)"
    )


def _power_words(device: Device) -> str:
    watts = power_limit_w(device)
    return "" if watts is None else f", as far as its power limit of {watts} W lets them"


def _rates_words(device: Device, assumed: Assumptions) -> str:
    band = f"step time x {assumed.time_low:.2f} to {assumed.time_high:.2f} (eight of ten runs)"
    if device.calibrated:
        return f"rates: measured on this machine; {band}"
    reached = efficiency_of(device)
    shares = ", ".join(f"{kind} {share:.0%}" for kind, share in reached.matrix_shares.items())
    attended = ", ".join(
        f"{kernel} {float(attention_share(device, kernel, _LONG, _HEAD)):.0%}"
        for kernel in reached.attention
    )
    at_half = half_sizes(device)
    sizes = (
        f", half of that at width {at_half.width:.0f} or {at_half.tokens:.0f} tokens a micro-batch"
    )
    return (
        f"rates: datasheet, of which large matrix products reach {shares}"
        f"{sizes if at_half.width else ''}{_power_words(device)}; fused attention in "
        f"rows of {_LONG:,} tokens {attended}; elementwise kernels {reached.memory_share:.0%} "
        f"({reached.source}); {band}"
    )
