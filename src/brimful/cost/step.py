"""Seconds of one optimizer step: matrix products, bytes moved, operations launched.

time = matrix FLOPs / matrix rate + bytes moved / bandwidth + operations x launch time (Williams et
al. 2009, "Roofline", without overlap between the two on a CPU). On CUDA the host launches ahead of
the device, so only what launching takes beyond the device's own work counts. What share of its
rates a device reaches stands in ``efficiency.py``.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.attending import Scores, attention_seconds
from brimful.cost.efficiency import (
    ProductSize,
    efficiency_of,
    fused_bytes,
    product_share,
)
from brimful.cost.family import (
    Family,
    family_counts,
    family_dimensions,
    family_micro_batches,
    family_variant,
)
from brimful.cost.leaving import later_runs
from brimful.cost.preference import forward_runs, runs_reference
from brimful.cost.profiles import Dimensions, Group, Profile, Run, Work
from brimful.cost.states import States
from brimful.cost.trajectory import Array, evaluate_terms, middles
from brimful.hardware.cluster import Device, matrix_rate
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.values.job import Job, Precision


class StepWork(NamedTuple):
    """What one optimizer step computes: [strategies] each.

    Attributes:
        matrix_flops: Of matrix products.
        attention_flops: Of fused attention, counted as if nothing were masked.
        moved_bytes: Read and written by everything else.
        num_ops: Operations launched.
    """

    matrix_flops: Array
    attention_flops: Array
    moved_bytes: Array
    num_ops: Array


class StepSeconds(NamedTuple):
    """Where the seconds of one optimizer step go: [strategies] each.

    ``exposed_s`` are those of collectives beyond the device's own work (``traffic.py``).
    """

    matrix_s: Array
    memory_s: Array
    launch_s: Array
    exposed_s: Array


def update_bytes(job: Job, device: Device, held: States, family: Family) -> Any:
    """Bytes that clip and update of a job move on the device, by what it holds."""
    if family.away.optimizer:
        return 0 * held.trained
    return update_on_device(job, device, held.gradients, held.trained + held.optimizer_state)


def update_on_device(job: Job, device: Device, gradients: float, kept: float) -> Any:
    """Bytes that an update on a device moves, whose kernels pass whole tensors: ``fused_bytes``.

    Others as ``traffic_of_update``.
    """
    passes = OPTIMIZERS[job.optimizer].passes
    return fused_bytes(traffic_of_update(gradients=gradients, kept=kept, passes=passes), device)


def traffic_of_update(*, gradients: float, kept: float, passes: float = 1.0) -> float:
    """Bytes that clip and update move.

    The norm reads every gradient and scaling reads and writes it; the update reads the gradient
    once more and reads and writes what it keeps: parameters and optimizer state.

    ``gradients``: bytes of all gradients. ``kept``: bytes of the parameters that train, and of the
    optimizer's state. ``passes``: of the optimizer's record.
    """
    return 3 * gradients + passes * (gradients + 2 * kept)


def family_work(job: Job, profile: Profile, family: Family, *, moved_by_update: float) -> StepWork:
    """Add up the work of all runs of a step, for every strategy of a family.

    ``moved_by_update``: ``update_bytes`` of the job.
    """
    variant, dims = family_variant(job, profile, family), family_dimensions(job, family)
    counts = family_counts(job, family)
    runs = (variant.first, later_runs(variant, family))
    of_work = {  # micro-batches are runs of the same works
        work: _amounts(profile.works[work], dims) for work in {run.work for run in chain(*runs)}
    }
    first, later = (_micro_work(of_work, each, counts) for each in runs)
    num_batches = family_micro_batches(job, family)
    total = first + (num_batches - 1) * later
    if runs_reference(family.reference):
        total += num_batches * _micro_work(of_work, forward_runs(variant.first), counts)
    return StepWork(total[0], total[1], total[2] + moved_by_update, total[3])


def _micro_work(
    of_work: Mapping[int, Array],
    runs: tuple[Run, ...],
    counts: dict[Group, NDArray[np.float64]],
) -> Array:
    """Return the work of one micro-batch: [4, strategies]."""
    once, middle = np.ones_like(counts["plain"]), middles(counts, runs)
    total = np.zeros((4, len(once)))
    for run in runs:
        total += of_work[run.work] * (middle[run.group] if run.role == "middle" else once)
    return total


def _amounts(work: Work, dims: Dimensions) -> Array:
    """Return what one run of a work does: [4, 1]."""
    formulas = (work.matrix_flops, work.attention_flops, work.moved_bytes)
    amounts = [*(evaluate_terms(terms, dims) for terms in formulas), work.num_ops]
    return np.array(amounts)[:, None]


def step_seconds(
    work: StepWork, job: Job, device: Device, size: ProductSize, scores: tuple[Scores, ...]
) -> StepSeconds | None:
    """Turn work into seconds; None where a rate of the device is unknown."""
    rate, reached = matrix_rate(device, job.precision), efficiency_of(device)
    matrix = rate * product_share(device, job.precision, size)
    bandwidth = device.memory_bytes_per_s * reached.memory_share
    attention_s = attention_seconds(work.attention_flops, job, device, scores)
    if not np.all(matrix) or not bandwidth or np.isnan(attention_s).any():
        return None
    matrix_s = work.matrix_flops / matrix + attention_s
    memory_s = work.moved_bytes / bandwidth
    launch_s = work.num_ops * device.op_overhead_s
    if device.kernels == "cuda":
        launch_s = np.maximum(0.0, launch_s - matrix_s - memory_s)
    return StepSeconds(matrix_s, memory_s, launch_s, np.zeros_like(matrix_s))


def utilization(flops: float, seconds: float, device: Device, precision: Precision) -> float | None:
    """Return the share of a device's dense rate that FLOPs in some seconds amount to.

    MFU where the FLOPs are the model's, HFU where recomputation is among them (arXiv:2204.02311,
    appendix B). Attention counts whole there, masked or not, and so it does in ``StepWork``.

    ``device``: its rate is the datasheet's, or measured where it is calibrated. Returns the share;
    None where the rate is unknown.
    """
    rate = matrix_rate(device, precision)
    return flops / (seconds * rate) if rate and seconds else None
