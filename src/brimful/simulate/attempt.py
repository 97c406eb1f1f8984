"""One strategy on the second rung: its peak, whether it fits, and the work of its step.

Where no formula covers a job, this is what a search compares. Seconds are the first rung's: the
roofline of ``cost.step``, on work that was traced for this strategy and not taken from a profile.
"""

from typing import NamedTuple

import numpy as np

from brimful.cost.efficiency import size_of
from brimful.cost.estimate import allocatable_bytes
from brimful.cost.step import StepWork, step_seconds, traffic_of_update
from brimful.hardware.cluster import Cluster, Device
from brimful.job import Job
from brimful.pretend.recording import Recording
from brimful.rungs import GRADIENTS, OPTIMIZER_STATE
from brimful.simulate.capacity import reserve
from brimful.simulate.run import NUM_STEPS, trace
from brimful.simulate.unrolled import record_whole
from brimful.strategy import Strategy, num_micro_batches

_STEP = f"step {NUM_STEPS}"
_UPDATE = f"{_STEP} optimizer"


class Attempt(NamedTuple):
    """What became of one strategy.

    Attributes:
        strategy: The strategy.
        peak_bytes: Its simulated peak of live bytes.
        short_bytes: By how much it does not fit; 0 where it does. On a GPU the caching allocator
            decides, so that a peak within the limit may be short too.
        step_s: Predicted seconds of a step; None where the device's rates are unknown, or
            where modules are kept in fp32.
    """

    strategy: Strategy
    peak_bytes: int
    short_bytes: int
    step_s: float | None


def attempt(job: Job, cluster: Cluster, strategy: Strategy) -> Attempt:
    """Simulate a strategy.

    Args:
        job: What is trained.
        cluster: Says whose kernels are imitated, how fast they are and what tensors may take.
        strategy: How it is run.

    Raises:
        InputError: The strategy cannot run this job.
        UnsupportedError: This version cannot run it.
    """
    device = cluster.device

    def record(job: Job, strategy: Strategy) -> Recording:
        traced = trace(
            job, strategy, imitate=device.kernels, capability=device.capability, count_costs=True
        )
        return traced.recording

    recording = record_whole(job, strategy, record)
    peak_bytes = int(recording.live_bytes().max())
    work = step_work(recording, num_micro_batches(job, strategy))
    # Products of kept modules run at another rate, and the tape does not tell them apart.
    seconds = (
        None
        if job.keep_fp32
        else step_seconds(work, job, device, size_of(job, strategy.micro_batch))
    )
    return Attempt(
        strategy=strategy,
        peak_bytes=peak_bytes,
        short_bytes=_short_bytes(recording, peak_bytes, device),
        step_s=None if seconds is None else float(sum(part[0] for part in seconds)),
    )


def _short_bytes(recording: Recording, peak_bytes: int, device: Device) -> int:
    limit_bytes = allocatable_bytes(device)
    short = max(0, peak_bytes - limit_bytes)
    if device.kernels != "cuda" or short:
        return short
    return reserve(recording, allocator="", capacity_bytes=max(0, limit_bytes)).short_bytes


def step_work(recording: Recording, num_micro_batches: int) -> StepWork:
    """Add up what one optimizer step computes: [1] each.

    Args:
        recording: With the costs of ``NUM_STEPS`` steps. The first micro-batch of the last one is
            counted once, its second stands for every later one.
        num_micro_batches: Of a step.
    """
    last = [i for i, name in enumerate(recording.phases) if name.startswith(f"{_STEP} ")]
    forwards = [i for i in last if recording.phases[i].endswith(" forward")]
    first, later = forwards[0], forwards[-1]
    total = np.zeros(4)
    for cost in recording.costs:
        if cost.phase < first:
            continue
        is_later = cost.phase >= later > first and recording.phases[cost.phase] != _UPDATE
        times = num_micro_batches - 1 if is_later else 1
        # What the update moves is counted from what it keeps: in place it has no outputs to count.
        moved = 0 if recording.phases[cost.phase] == _UPDATE else sum(cost.moved_bytes)
        total += times * np.array([cost.matrix_flops, cost.attention_flops, moved, 1])
    update = _update_bytes(recording, last)
    matrix_flops, attention_flops, moved_bytes, num_ops = total
    columns = (matrix_flops, attention_flops, moved_bytes + update, num_ops)
    return StepWork(*(np.array([column]) for column in columns))


def _update_bytes(recording: Recording, last: list[int]) -> float:
    start = next(i for i in last if recording.phases[i] == _UPDATE)
    alive = recording.alive_at(int(recording.phase_starts[start]) - 1)
    tags = np.array(recording.items, dtype=object)[recording.item[alive]]
    held = {name: float(recording.num_bytes[alive][tags == name].sum()) for name in _HELD}
    gradients = held[GRADIENTS]
    return traffic_of_update(gradients=gradients, kept=gradients + held[OPTIMIZER_STATE])


_HELD = (GRADIENTS, OPTIMIZER_STATE)
