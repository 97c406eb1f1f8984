"""The first rung, assembled: memory and time of a job on a cluster under a strategy."""

from brimful.cost.assumptions import Assumptions, assumptions_for, describe
from brimful.cost.memory import items_at_peak, phase_peaks, profile_for, step_memory
from brimful.cost.step import step_time, step_work
from brimful.hardware.cluster import Cluster, Device
from brimful.job import Job
from brimful.plan import Band, Estimate
from brimful.strategy import Strategy


def estimate(job: Job, cluster: Cluster, strategy: Strategy) -> Estimate:
    """Predict a run.

    Args:
        job: What is trained.
        cluster: On what.
        strategy: How.

    Returns:
        Itemised peak memory, bands, step time.

    Raises:
        UnsupportedError: No profile was traced for this architecture and these settings.
    """
    device = cluster.device
    profile = profile_for(job, strategy.attention, device)
    memory = step_memory(job, strategy, profile)
    phases = phase_peaks(memory)
    peak = max(phase.num_bytes for phase in phases)
    work = step_work(job, strategy, profile)
    seconds = step_time(work, job, device)
    assumed = assumptions_for(device)
    return Estimate(
        items=items_at_peak(memory),
        phases=phases,
        predicted_peak_allocated_bytes=peak,
        predicted_peak_reserved_bytes=_reserved(peak, device, assumed),
        predicted_process_bytes=_process(peak, device, assumed),
        predicted_step_s=seconds.total_s if seconds else None,
        predicted_step_band_s=_around(seconds.total_s, assumed.time_band) if seconds else None,
        predicted_step_time=seconds,
        step_flops=work.matrix_flops,
        usable_bytes=device.usable_bytes,
        fits=peak + _context(device, assumed) <= device.usable_bytes,
        assumptions=describe(device),
    )


def _context(device: Device, assumed: Assumptions) -> int:
    return assumed.context_low_bytes if device.kernels == "cuda" else 0


def _reserved(peak: int, device: Device, assumed: Assumptions) -> Band | None:
    if device.kernels != "cuda":
        return None
    return Band(low=peak * assumed.reserved_low, high=peak * assumed.reserved_high)


def _process(peak: int, device: Device, assumed: Assumptions) -> Band | None:
    reserved = _reserved(peak, device, assumed)
    if reserved is None:
        return None
    return Band(
        low=reserved.low + assumed.context_low_bytes,
        high=reserved.high + assumed.context_high_bytes,
    )


def _around(value: float, half_width: float) -> Band:
    return Band(low=value * (1 - half_width), high=value * (1 + half_width))
