"""Seconds of one optimizer step: matrix products, bytes moved, operations launched.

time = matrix FLOPs / matrix rate + bytes moved / bandwidth + operations x launch time (Williams et
al. 2009, "Roofline", without overlap between the two on a CPU). On CUDA the host launches ahead of
the device, so only what launching takes beyond the device's own work counts.
"""

from typing import NamedTuple

import numpy as np

from brimful.cost.assumptions import assumptions_for
from brimful.cost.memory import body_of, variant_of
from brimful.cost.profiles import Dimensions, Profile, Run, dimensions
from brimful.cost.recipes import RECIPES
from brimful.cost.trajectory import BOUNDARY_MEMBERS, evaluate_terms
from brimful.hardware.cluster import Device, matrix_rate
from brimful.job import Job
from brimful.models.config import parameter_count
from brimful.plan import StepTime
from brimful.strategy import Strategy, num_checkpointed, num_micro_batches

CAUSAL_SHARE = 0.5
"""Half of a causal attention's scores are masked, and fused kernels skip them."""


class StepWork(NamedTuple):
    """What one optimizer step computes.

    Attributes:
        matrix_flops: Of matrix products and attention.
        moved_bytes: Read and written by everything else.
        num_ops: Operations launched.
    """

    matrix_flops: float
    moved_bytes: float
    num_ops: float


def update_bytes(job: Job) -> float:
    """Bytes that clip and AdamW move.

    The norm reads every gradient and scaling reads and writes it (3 x gradient); AdamW reads the
    gradient once more and reads and writes parameter and moments.
    """
    recipe, total = RECIPES[job.precision], parameter_count(job.model).total
    held = recipe.parameter + recipe.optimizer_state
    return total * (4 * recipe.gradient + 2 * held)


def step_work(job: Job, strategy: Strategy, profile: Profile) -> StepWork:
    """Add up the work of all runs of a step."""
    num_blocks = num_checkpointed(strategy, num_layers=job.model.num_layers)
    variant = variant_of(profile, body_of(num_blocks, job.model.num_layers), strategy.loss_chunks)
    chunk_tokens = -(-strategy.micro_batch * job.seq_len // strategy.loss_chunks)
    dims = dimensions(
        job.model,
        micro_batch=strategy.micro_batch,
        seq_len=job.seq_len,
        chunk_tokens=chunk_tokens,
    )
    counts = {
        "checkpointed": num_blocks,
        "plain": job.model.num_layers - num_blocks,
        "chunk": strategy.loss_chunks,
    }
    first = _micro_work(profile, variant.first, dims, counts)
    later = _micro_work(profile, variant.later, dims, counts)
    total = first + (num_micro_batches(job, strategy) - 1) * later
    return StepWork(total[0], total[1] + update_bytes(job), total[2])


def _micro_work(
    profile: Profile, runs: tuple[Run, ...], dims: Dimensions, counts: dict[str, int]
) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    total = np.zeros(3)
    for run in runs:
        work = profile.works[run.work]
        times = counts[run.group] - BOUNDARY_MEMBERS if run.role == "middle" else 1
        attention = CAUSAL_SHARE * evaluate_terms(work.attention_flops, dims)
        total += times * np.array(
            [
                evaluate_terms(work.matrix_flops, dims) + attention,
                evaluate_terms(work.moved_bytes, dims),
                work.num_ops,
            ]
        )
    return total


def step_time(work: StepWork, job: Job, device: Device) -> StepTime | None:
    """Turn work into seconds; None where a rate of the device is unknown."""
    assumed = assumptions_for(device)
    matrix = matrix_rate(device, job.precision) * assumed.matrix_efficiency
    bandwidth = device.memory_bytes_per_s * assumed.memory_efficiency
    if not matrix or not bandwidth:
        return None
    matrix_s, memory_s = work.matrix_flops / matrix, work.moved_bytes / bandwidth
    launch_s = work.num_ops * device.op_overhead_s
    if device.kernels == "cuda":
        launch_s = max(0.0, launch_s - matrix_s - memory_s)
    return StepTime(matrix_s=matrix_s, memory_s=memory_s, launch_s=launch_s)
