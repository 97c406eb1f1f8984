"""One strategy on the second rung: its peak, whether it fits, and the work of its step.

Where no formula covers a job, this is what a search compares. Seconds are the first rung's: the
roofline of ``cost.step``, on work that was traced for this strategy and not taken from a profile.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np

from brimful.cost.attending import scores_on_tape
from brimful.cost.copied import Copied, copied_seconds
from brimful.cost.efficiency import fused_bytes, size_of
from brimful.cost.estimate import tensor_limit_bytes
from brimful.cost.exchange import sent_of
from brimful.cost.expert_exchange import exchange_waits_s
from brimful.cost.family import family_of
from brimful.cost.managed import away_bytes, paging_seconds
from brimful.cost.step import StepWork, step_seconds, traffic_of_update, update_on_device
from brimful.cost.traffic import traffic_of, with_traffic
from brimful.hardware.cluster import Cluster, Device
from brimful.models.config import has_layout
from brimful.pretend.reading import items_at, peak_event_of
from brimful.pretend.recording import TO_DEVICE, TO_HOST, OpCost, Recording
from brimful.pretend.tape import go_on
from brimful.search.holding import allocators_of
from brimful.simulate.capacity import reserve_for, shortage
from brimful.simulate.items import HostPeak, read_host
from brimful.simulate.phases import state_made
from brimful.simulate.run import NUM_STEPS, trace
from brimful.simulate.unrolled import keeps_all_blocks, record_whole
from brimful.values.job import Job
from brimful.values.plan import MemoryItem
from brimful.values.results import GRADIENTS, OPTIMIZER_STATE, PARAMETERS, Reserved
from brimful.values.strategy import Strategy, num_micro_batches, world_size

_STEP = f"step {NUM_STEPS}"
_UPDATE = f"{_STEP} optimizer"
_OF_TORCH = "."
"""In the names of PyTorch's operations, and of no kernel that a compiler or a library wrote."""
_MOVES_NOTHING = ("aten.empty", "aten.new_empty", "c10d.", "fsdp.all_gather_copy_in")
"""Beginnings of the names of operations that only allocate, of what is sent over links, whose
seconds are by formula, and of what FSDP copies of its shards before it gathers them, on a stream of
its own beside the kernels (``foreach_all_gather`` in ``_fsdp_collectives.py``)."""


class Attempt(NamedTuple):
    """What became of one strategy.

    Attributes:
        strategy: The strategy.
        peak_bytes: Its simulated peak of live bytes.
        short_bytes: By how much it does not fit; 0 where it does. On a GPU the caching allocator
            decides, so that a peak within the limit may be short too; so may what is offloaded be,
            where the host's memory is known.
        step_s: Predicted seconds of a step; None where the device's rates are unknown, or
            where modules are kept in fp32.
        reserved: What the caching allocator makes of it; None: of a CPU, or tensors do not fit.
        host_bytes: What a node's host holds for its GPUs.
        items: What is alive at the peak, by class.
    """

    strategy: Strategy
    peak_bytes: int
    short_bytes: int
    step_s: float | None
    reserved: Reserved | None = None
    host_bytes: int = 0
    items: tuple[MemoryItem, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether it surely fits: without a retry, within what is certain of the device."""
        return not self.short_bytes and (self.reserved is None or self.reserved.word == "fits")


def attempt(
    job: Job,
    cluster: Cluster,
    strategy: Strategy,
    *,
    on_op: Callable[[], None] = go_on,
    may_grow: bool = False,
) -> Attempt:
    """Simulate a strategy.

    ``cluster``: says whose kernels are imitated, how fast they are and what tensors may take.
    ``on_op``: called before every operation and between the phases of the work; what it raises ends
    the simulation. ``may_grow``: whether segments of the allocator may grow where nothing is said
    of it, if the strategy does not hold otherwise; the attempt's own strategy says so then. Raises
    InputError: the strategy cannot run this job. Raises UnsupportedError: this version cannot run
    it.
    """
    device = cluster.device
    hosts: list[Recording] = []

    place: dict[str, Any] = {"imitate": device.kernels, "capability": device.capability}

    def record(job: Job, strategy: Strategy) -> Recording:
        on_op()
        traced = trace(job, strategy, **place, count_costs=True, on_op=on_op)
        on_op()
        hosts.append(traced.host)
        return traced.recording

    recording = record_whole(job, strategy, record, counts_costs=True)
    on_op()
    peak_bytes = int(recording.live_bytes().max())
    if len(hosts) > 1 and keeps_all_blocks(job, strategy):
        whole = trace(job, strategy, **place, num_steps=0, then=(state_made,), on_op=on_op)
        hosts.append(whole.host)
    host = read_host(hosts[-1])
    short = max(0, peak_bytes - tensor_limit_bytes(cluster))
    reserved = None if short else reserve_for(recording, cluster, allocator=strategy.allocator)
    if may_grow and reserved is not None and reserved.word != "fits":
        strategy, reserved = _as_it_holds(recording, cluster, strategy)
    short = short if reserved is None else reserved.short_bytes
    away = _paged_away(cluster, host, peak_bytes)
    host_bytes = (host.block_bytes + away) * cluster.devices_per_node
    return Attempt(
        strategy=strategy,
        peak_bytes=peak_bytes,
        short_bytes=max(short, _short_of_host(host_bytes, cluster)),
        step_s=seconds_of_step(job, cluster, strategy, (recording, host)),
        reserved=reserved,
        host_bytes=host_bytes,
        items=items_at(recording, peak_event_of(recording)),
    )


def _as_it_holds(
    recording: Recording, cluster: Cluster, strategy: Strategy
) -> tuple[Strategy, Reserved]:
    """Return a strategy with the settings of the allocator that hold best, and what they hold."""
    tried = [
        (msgspec.structs.replace(strategy, allocator=allocator), reserved)
        for allocator in allocators_of(strategy)
        if (reserved := reserve_for(recording, cluster, allocator=allocator)) is not None
    ]
    return min(tried, key=lambda each: shortage(each[1]))


def seconds_of_step(
    job: Job, cluster: Cluster, strategy: Strategy, recorded: tuple[Recording, HostPeak]
) -> float | None:
    """Predict the seconds of a step from what a device's operations compute, and what it sends.

    None where that is not known: see ``is_timed``, and of rates that nobody has published.

    ``recorded``: of the device, with costs counted, and what the host keeps.
    """
    if not is_timed(job, strategy):
        return None
    num = num_micro_batches(job, strategy)
    device = cluster.device
    work, copied = step_work(recorded[0], num, device), step_copies(*recorded, num)
    update = update_on_device(job, device, *_updated(recorded[0]))
    work = work._replace(moved_bytes=work.moved_bytes + update)
    if job.keep_fp32:  # whose products run at another rate, and the tape does not tell them apart
        return None
    flops = attention_flops(recorded[0])
    scores = scores_on_tape(flops, job, strategy.attention)
    size = size_of(job, strategy.micro_batch, tp=strategy.tp)
    parts = step_seconds(work, job, device, size, scores)
    if parts is None:
        return None
    if world_size(strategy) > 1:
        family = family_of(job, strategy)
        waits = exchange_waits_s(job, family, cluster, sent_of(job, family))
        parts = with_traffic(parts, traffic_of(job, family, cluster), num * waits, num)
    busy_s = float(sum(part[0] for part in parts))
    if np.isnan(busy_s):  # what a link takes is unknown
        return None
    more_s = copied_seconds(copied, device, num_beside=cluster.devices_per_node, beside_s=busy_s)
    away = _paged_away(cluster, recorded[1], int(recorded[0].live_bytes().max()))
    total_s = None if more_s is None else busy_s + more_s + paging_seconds(away, device)
    return None if total_s is None or np.isnan(total_s) else float(total_s)


def _paged_away(cluster: Cluster, host: HostPeak, peak_bytes: int) -> int:
    """Return what of paged state has no room beside a peak."""
    limit_bytes = tensor_limit_bytes(cluster)
    return int(away_bytes(host.paged_bytes, held=peak_bytes, limit_bytes=limit_bytes))


def is_timed(job: Job, strategy: Strategy) -> bool:
    """Whether a recorded step has a time: of one device, or with what devices send each other.

    A tape has no links, so that by formula it is counted what replicas, shards, tensor parallel and
    experts send; what stages of a pipeline wait for hangs on all of them, and one is recorded.
    """
    return world_size(strategy) == 1 or (strategy.pp == 1 and has_layout(job.model))


def _short_of_host(host_bytes: int, cluster: Cluster) -> int:
    """Return by how much a node's host is too small for what its GPUs keep there; 0: unknown."""
    if not cluster.host_ram_bytes or cluster.device.kernels == "cpu":
        return 0
    return max(0, host_bytes - cluster.host_ram_bytes)


def step_work(recording: Recording, num_micro_batches: int, device: Device) -> StepWork:
    """Add up what one optimizer step computes, its update left out: [1] each.

    ``recording``: with the costs of ``NUM_STEPS`` steps. The first micro-batch of the last one is
    counted once, its second stands for every later one.
    """
    total = np.zeros(4)
    for cost, times in _costs_of_last(recording, num_micro_batches):
        if cost.op in {TO_HOST, TO_DEVICE} or cost.op.startswith(_MOVES_NOTHING):
            continue
        # What the update moves is counted from what it keeps: in place it has no outputs to count.
        moved = 0 if recording.phases[cost.phase] == _UPDATE else sum(cost.moved_bytes)
        moved = moved if _OF_TORCH in cost.op else fused_bytes(moved, device)
        total += times * np.array([cost.matrix_flops, cost.attention_flops, moved, 1])
    return StepWork(*total[:, None])


def attention_flops(recording: Recording) -> Counter[str]:
    """Add up what each operation computes of attention."""
    found = Counter[str]()
    for cost in recording.costs:
        if cost.attention_flops:
            found[cost.op] += cost.attention_flops
    return found


def step_copies(recording: Recording, host: HostPeak, num_micro_batches: int) -> Copied:
    """Add up what one optimizer step copies, and what the host reads and writes to update.

    ``recording``: as for ``step_work``.
    """
    moved = {TO_HOST: 0.0, TO_DEVICE: 0.0, _UPDATE: 0.0}
    for cost, times in _costs_of_last(recording, num_micro_batches):
        if cost.op in {TO_HOST, TO_DEVICE}:
            is_behind = recording.phases[cost.phase] == _UPDATE
            moved[_UPDATE if is_behind else cost.op] += times * sum(cost.moved_bytes)
    held = {item.name: float(item.num_bytes) for item in host.items}
    gradients = held.get(GRADIENTS, 0.0)
    kept = held.get(PARAMETERS, 0.0) + held.get(OPTIMIZER_STATE, 0.0)
    return Copied(
        to_host=moved[TO_HOST],
        to_device=moved[TO_DEVICE],
        updated=moved[_UPDATE],
        host_traffic=traffic_of_update(gradients=gradients, kept=kept) if gradients else 0.0,
    )


def _phases_of_last(recording: Recording) -> list[int]:
    return [i for i, name in enumerate(recording.phases) if name.startswith(f"{_STEP} ")]


def _costs_of_last(recording: Recording, num_micro_batches: int) -> Iterator[tuple[OpCost, int]]:
    """Yield the costs of the last step, and how often each is there."""
    last = _phases_of_last(recording)
    forwards = [i for i in last if recording.phases[i].endswith(" forward")]
    first, later = forwards[0], forwards[-1]
    for cost in recording.costs:
        if cost.phase >= first:
            is_later = cost.phase >= later > first and recording.phases[cost.phase] != _UPDATE
            yield cost, num_micro_batches - 1 if is_later else 1


def _updated(recording: Recording) -> tuple[float, float]:
    """Return the bytes of gradients when an update begins, and of what it keeps."""
    start = next(i for i in _phases_of_last(recording) if recording.phases[i] == _UPDATE)
    alive = recording.alive_at(int(recording.phase_starts[start]) - 1)
    tags = np.array(recording.items, dtype=object)[recording.item[alive]]
    held = {name: float(recording.num_bytes[alive][tags == name].sum()) for name in _HELD}
    gradients = held[GRADIENTS]
    return gradients, gradients + held[OPTIMIZER_STATE]


_HELD = (GRADIENTS, OPTIMIZER_STATE)
