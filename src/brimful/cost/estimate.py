"""The first rung, assembled: memory and time of a job on a cluster under a strategy."""

from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from brimful.cost.assumptions import around, assumptions_for, describe
from brimful.cost.attending import Scores, scores_of
from brimful.cost.copied import copied_seconds
from brimful.cost.deepspeed_engine import engine_memory
from brimful.cost.efficiency import size_of
from brimful.cost.eval_phase import other_phases, resting_phases
from brimful.cost.exchange import sent_of
from brimful.cost.expert_exchange import exchange_waits_s
from brimful.cost.family import Family, family_micro_batches, family_of
from brimful.cost.formula import check_formula, missing_formula
from brimful.cost.host import host_memory
from brimful.cost.managed import away_bytes, paged_bytes, paging_seconds, paging_words
from brimful.cost.memory import StepMemory, items_at_peak, phase_peaks, profile_for, step_memory
from brimful.cost.on_host import copied_of
from brimful.cost.outside import num_groups, parts_outside, room_of
from brimful.cost.preference import copied_as_moved
from brimful.cost.profiles import Profile
from brimful.cost.resident import num_shards_of
from brimful.cost.sent_activations import sent_activations
from brimful.cost.speed import speed_of, step_flops
from brimful.cost.stage_peaks import fullest
from brimful.cost.stage_site import site_of
from brimful.cost.stage_time import Row, step_of_row
from brimful.cost.states import device_update_flops
from brimful.cost.step import StepSeconds, family_work, step_seconds, update_bytes
from brimful.cost.traffic import traffic_of, with_traffic
from brimful.hardware.cluster import Cluster, Device, offered_bytes
from brimful.techniques.dropout import dropout_words
from brimful.values.job import Job, Precision
from brimful.values.plan import Band, Estimate, PhasePeak, Plan, StepTime
from brimful.values.strategy import Strategy, gathers, world_size


def estimate(
    job: Job,
    cluster: Cluster,
    strategy: Strategy,
    *,
    products: Precision | None = None,
    scores: tuple[Scores, ...] | None = None,
) -> Estimate:
    """Predict a run.

    Args:
        job: What is trained.
        cluster: On what.
        strategy: How.
        products: The recipe whose types its matrix products run in, where that is another than the
            job's own, which says what is held; matters to seconds, and not to a pipeline's.
        scores: What computes its scores, where that is not what PyTorch takes now; likewise.

    Returns:
        Itemised peak memory, bands, step time.

    Raises:
        UnsupportedError: No formula covers the job.
    """
    device, limit_bytes = cluster.device, tensor_limit_bytes(cluster)
    check_formula(job, strategy, device)
    if strategy.pp > 1:
        found = _row(job, cluster, strategy)
    else:
        computed = _Computed(
            products or job.precision, scores or scores_of(job, strategy.attention, device)
        )
        found = _one(job, cluster, strategy, computed)
    memory, phases, flops, seconds = found
    peak = max(phase.num_bytes for phase in phases)
    speed = speed_of(job, cluster, strategy, seconds.total_s if seconds else None)
    return Estimate(
        items=items_at_peak(memory),
        phases=phases,
        predicted_peak_allocated_bytes=peak,
        predicted_peak_reserved_bytes=_reserved(peak, device, strategy),
        predicted_process_bytes=_process(peak, device, strategy),
        predicted_step_s=seconds.total_s if seconds else None,
        predicted_step_band_s=around(seconds.total_s, device) if seconds else None,
        predicted_step_time=seconds,
        step_flops=flops,
        usable_bytes=limit_bytes,
        fits=peak <= limit_bytes,
        assumptions=(
            *describe(
                device,
                gathers=gathers(strategy),
                num_groups=num_groups(strategy),
                parts_experts=strategy.ep > 1,
                dropout=dropout_words(job),
            ),
            *paging_words(job, device),
        ),
        tokens_per_s=speed.tokens_per_s,
        mfu=speed.mfu,
        hfu=speed.hfu,
        host=host_memory(job, cluster, strategy, phases, limit_bytes) if strategy.pp == 1 else None,
    )


class _Computed(NamedTuple):
    """The recipe whose types products run in, and what computes scores."""

    products: Precision
    scores: tuple[Scores, ...]


class _Found(NamedTuple):
    """What a strategy takes of its fullest device: memory, phases, FLOPs of a step, seconds."""

    memory: StepMemory
    phases: tuple[PhasePeak, ...]
    flops: float
    seconds: StepTime | None


def _one(job: Job, cluster: Cluster, strategy: Strategy, computed: _Computed) -> _Found:
    """Predict devices that are all alike."""
    device, family = cluster.device, family_of(job, strategy)
    profile = profile_for(job, strategy.attention, device, family)
    memory, phases = _memory(job, device, strategy)
    moved = update_bytes(job, device, memory.states, family) + copied_as_moved(job, family, device)
    work = family_work(job, profile, family, moved_by_update=moved)
    size = size_of(job, strategy.micro_batch, tp=strategy.tp)
    updates = device_update_flops(job, family, num_shards_of(family))
    stepped = work._replace(matrix_flops=work.matrix_flops + updates)
    alone = step_seconds(
        stepped, replace(job, precision=computed.products), device, size, computed.scores
    )
    times = family_micro_batches(job, family)
    waits = exchange_waits_s(job, family, cluster, sent_of(job, family))
    waited = times * waits + _offloaded(job, profile, family, cluster, alone)
    traffic = traffic_of(job, family, cluster)
    moving_s = _paging(job, cluster, strategy, phases)
    seconds = _step_time(alone and with_traffic(alone, traffic, waited, times), moving_s)
    return _Found(memory, phases, float(work.matrix_flops[0] + work.attention_flops[0]), seconds)


def predicted_peak(job: Job, cluster: Cluster, strategy: Strategy) -> int:
    """Return the peak of ``estimate`` alone: who tries many sizes asks for nothing else."""
    check_formula(job, strategy, cluster.device)
    _, phases = _memory(job, cluster.device, strategy)
    return max(phase.num_bytes for phase in phases)


def _memory(
    job: Job, device: Device, strategy: Strategy
) -> tuple[StepMemory, tuple[PhasePeak, ...]]:
    """Return what the fullest device holds, and the peak of each phase."""
    if strategy.pp > 1:
        memory = fullest(site_of(job, strategy, device))
        return memory, (*phase_peaks(memory), *resting_phases(memory))
    if strategy.engine != "torch":
        memory = engine_memory(job, strategy, device)
        return memory, phase_peaks(memory)
    profile = profile_for(job, strategy.attention, device, family_of(job, strategy))
    memory = step_memory(job, strategy, profile, device)
    return memory, (*phase_peaks(memory), *other_phases(job, strategy, device, memory))


def _paging(job: Job, cluster: Cluster, strategy: Strategy, phases: tuple[PhasePeak, ...]) -> float:
    """Return what a step takes longer as paged state has no room; NaN where that is unknown."""
    peak = max(phase.num_bytes for phase in phases)
    paged, limit_bytes = paged_bytes(job, strategy, cluster.device), tensor_limit_bytes(cluster)
    away = away_bytes(paged, held=peak, limit_bytes=limit_bytes)
    return float(paging_seconds(away, cluster.device))


def _offloaded(
    job: Job, profile: Profile, family: Family, cluster: Cluster, alone: StepSeconds | None
) -> Any:
    """Return what a step takes longer as something is on the host; NaN where that is unknown."""
    if alone is None:
        return np.nan
    beside_s = alone.matrix_s + alone.memory_s + alone.launch_s
    copied = copied_of(job, family, sent_activations(job, profile, family))
    num_beside = cluster.devices_per_node
    more = copied_seconds(copied, cluster.device, num_beside=num_beside, beside_s=beside_s)
    return np.nan if more is None else more


def _row(job: Job, cluster: Cluster, strategy: Strategy) -> _Found:
    """Predict the devices of a pipeline: the fullest one's memory, the slowest one's seconds."""
    site = site_of(job, strategy, cluster.device)
    memory, phases = _memory(job, cluster.device, strategy)
    flops = step_flops(site.job, cluster, strategy) / world_size(strategy)
    return _Found(memory, phases, flops, _time_of_row(step_of_row(site, cluster)))


def _time_of_row(row: Row | None) -> StepTime | None:
    if row is None or np.isnan(row.total_s):
        return None
    matrix_s, memory_s, launch_s = map(float, row.busy)
    return StepTime(
        matrix_s=matrix_s,
        memory_s=memory_s,
        launch_s=launch_s,
        exposed_s=row.total_s - matrix_s - memory_s - launch_s,
    )


def estimate_or_none(job: Job, cluster: Cluster, strategy: Strategy) -> Estimate | None:
    """Predict a run; None where no formula covers the job (``missing_formula`` says why)."""
    if missing_formula(job, strategy, cluster.device):
        return None
    return estimate(job, cluster, strategy)


def _step_time(seconds: StepSeconds | None, moving_s: float) -> StepTime | None:
    """Return the parts of a step: ``moving_s`` comes behind all else."""
    if seconds is None or np.isnan(seconds.exposed_s + seconds.memory_s + moving_s).any():
        return None
    return StepTime(
        matrix_s=float(seconds.matrix_s[0]),
        memory_s=float(seconds.memory_s[0]),
        launch_s=float(seconds.launch_s[0]),
        exposed_s=float(np.atleast_1d(seconds.exposed_s)[0]) + moving_s,
    )


def allocatable_bytes(device: Device) -> int:
    """Return what a device has for tensors at most: usable less the least that lies outside."""
    return room_of(device).most_bytes


def tensor_limit_bytes(cluster: Cluster) -> int:
    """Return what tensors may take of a device: all that it has for them, or within a limit.

    A limit below the context leaves nothing, and never less than nothing.
    """
    num_bytes = offered_bytes(cluster)
    if cluster.device.kernels != "cuda":
        return num_bytes
    return max(0, num_bytes - assumptions_for(cluster.device).context_low_bytes)


def limit_bytes(plan: Plan) -> int:
    """Return what tensors may take under a plan, as its estimate says where it has one."""
    if plan.estimate is not None:
        return plan.estimate.usable_bytes
    return tensor_limit_bytes(plan.cluster)


def _reserved(peak: int, device: Device, strategy: Strategy) -> Band | None:
    if device.kernels != "cuda":
        return None
    assumed = assumptions_for(device)
    high = assumed.reserved_high_sharded if gathers(strategy) else assumed.reserved_high
    return Band(low=peak * assumed.reserved_low, high=peak * high)


def _process(peak: int, device: Device, strategy: Strategy) -> Band | None:
    """Add what lies outside the allocator."""
    reserved = _reserved(peak, device, strategy)
    if reserved is None:
        return None
    parts = parts_outside(device, num_groups=num_groups(strategy))
    return Band(
        low=reserved.low + sum(part.low_bytes for part in parts),
        high=reserved.high + sum(part.high_bytes for part in parts),
    )
