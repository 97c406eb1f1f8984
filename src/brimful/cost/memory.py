"""Peak memory of a job and a strategy, by item and phase.

Parameters and optimizer state are closed form; what a forward and a backward add comes from the
profile. Peak = the largest of: after loading; inside a step's forward or backward; inside its
update.
"""

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.embedding import with_embedding
from brimful.cost.family import (
    Family,
    family_counts,
    family_dimensions,
    family_of,
    family_variant,
)
from brimful.cost.profiles import Profile, Run, load_profile
from brimful.cost.programs import program_of
from brimful.cost.recipes import RECIPES
from brimful.cost.trained import frozen_bytes, has_biases, num_trained
from brimful.cost.trajectory import Array, Peak, follow_step, kind_bytes
from brimful.cost.update import Update, update_of
from brimful.hardware.cluster import Device
from brimful.hardware.cuda_libraries import libraries
from brimful.job import Job
from brimful.plan import MemoryItem, PhasePeak
from brimful.rungs import (
    AUTOCAST_CACHE,
    BUFFERS,
    GRADIENTS,
    ITEM_NAMES,
    LOGITS,
    OPTIMIZER_STATE,
    PARAMETERS,
    SAVED_ACTIVATIONS,
    TRANSIENTS,
    WORKSPACES,
)
from brimful.strategy import Attention, Recompute, Strategy

NUM_BLAS_THREADS = 2
STEP_1, STEP_2 = "step 1", "step 2+"


class States(NamedTuple):
    """Bytes that live across phases.

    Attributes:
        frozen: Of parameters that do not train.
        constants: Of what a quantised weight cannot be read without.
        trained: Of those that do: parameters x bytes of the recipe.
        gradients: Of theirs, while they exist.
        optimizer_state: What the update keeps, masters included.
    """

    frozen: int
    constants: int
    trained: int
    gradients: int
    optimizer_state: int

    @property
    def parameters(self) -> int:
        """Of all parameters."""
        return self.frozen + self.trained

    @property
    def loaded(self) -> int:
        """Of all that is there before the first step."""
        return self.parameters + self.constants


class StepMemory(NamedTuple):
    """What one strategy's step looks like.

    Attributes:
        states: Bytes that live across phases.
        update: What the optimizer takes beside parameters and gradients.
        blas: Workspaces of cuBLAS, from the first forward and backward on.
        items: [items], bytes above parameters and state at the peak of forward and backward.
        run: Where that peak lies, in words.
    """

    states: States
    update: Update
    blas: int
    items: NDArray[np.int64]
    run: str


def states(job: Job, update: Update) -> States:
    """Compute the bytes of parameters, gradients and optimizer state.

    Args:
        job: What is trained.
        update: Its optimizer's (``update_of``).
    """
    recipe, trained = RECIPES[job.precision], num_trained(job)
    return States(
        *frozen_bytes(job), trained * recipe.parameter, trained * recipe.gradient, update.kept
    )


def profile_for(job: Job, attention: Attention, device: Device, recompute: Recompute) -> Profile:
    """Load the profile of a job that has a formula (``formula.py``)."""
    return load_profile(program_of(job, attention, device.kernels, recompute).key)


def follow_family(
    job: Job, profile: Profile, device: Device, family: Family, *, by_item: bool
) -> tuple[Peak, tuple[Run, ...]]:
    """Follow one step of every strategy of a family.

    Args:
        job: What is trained.
        profile: Its profile.
        device: On what.
        family: The strategies.
        by_item: Whether to keep a row per item rather than the total.

    Returns:
        The peak above parameters and state, and the runs its index refers to.
    """
    sizes = kind_bytes(profile, family_dimensions(job, family))
    peak, runs = follow_step(
        profile,
        family_variant(job, profile, family),
        _one_row_per_item(profile, sizes) if by_item else sizes[None],
        family_counts(job, family),
        accumulates=job.global_batch > family.micro_batch,
    )
    if device.kernels == "cuda" and job.method == "full":
        peak = with_embedding(job, family.micro_batch, peak, by_item=by_item)
    return peak, runs


def _one_row_per_item(profile: Profile, sizes: Array) -> Array:
    item = np.array([kind.item for kind in profile.kinds])
    return np.where(item == np.arange(len(ITEM_NAMES))[:, None], sizes, 0.0)


def blas_bytes(job: Job, family: Family, device: Device) -> NDArray[np.int64]:
    """Return what cuBLAS keeps for the forward's thread and for the backward's: [strategies].

    Each has a workspace of cuBLAS; each that runs a linear layer with a bias, which checkpointed
    blocks do in backward too, one of cuBLASLt.

    Source: ``aten/src/ATen/cuda/CublasHandlePool.cpp``; PyTorch's engine runs backward on a thread
    of its own.
    """
    num_blocks = np.atleast_1d(np.asarray(family.num_blocks))
    if device.kernels != "cuda":
        return np.zeros(len(num_blocks), dtype=np.int64)
    cublas = libraries().cublas_bytes(divmod(round(device.capability * 10), 10))
    num_biased = (1 + (num_blocks > 0)) * has_biases(job.model)
    return NUM_BLAS_THREADS * cublas + num_biased * min(libraries().cublas_lt_bytes, cublas)


def step_memory(job: Job, strategy: Strategy, profile: Profile, device: Device) -> StepMemory:
    """Find the peak of one strategy's forward and backward, by item."""
    family = family_of(job, strategy)
    peak, runs = follow_family(job, profile, device, family, by_item=True)
    at_peak = np.rint(peak.level[:, 0]).astype(np.int64)
    update = update_of(job, device.kernels)
    return StepMemory(
        states=states(job, update),
        update=update,
        blas=int(blas_bytes(job, family, device)[0]),
        items=at_peak,
        run=describe_run(runs, int(peak.run[0])),
    )


def describe_run(runs: tuple[Run, ...], index: int) -> str:
    """Say in words where in a step a run lies, e.g. ``backward of the first plain block``."""
    run = runs[index]
    if run.group == "chunk":
        return f"{run.phase} of a chunk of the loss"
    if run.group:
        return f"{run.phase} of the {run.role} {run.group} block"
    behind = itertools.takewhile(lambda r: r.phase == run.phase, reversed(runs[:index]))
    past_blocks = any(other.group in {"plain", "checkpointed"} for other in behind)
    part = "final norm and loss" if past_blocks == (run.phase == "forward") else "embedding"
    return f"{run.phase} of the {part}"


def phase_peaks(memory: StepMemory) -> tuple[PhasePeak, ...]:
    """Return the peak of every phase.

    Optimizer state is made by the first update, beside parameters and gradients; from then on it
    is there in every forward and backward.
    """
    held, inside = memory.states, int(memory.items.sum()) + memory.blas
    beside = held.loaded + held.gradients + memory.blas
    first = max(
        (held.loaded + inside, memory.run), (beside + memory.update.first_peak, "optimizer")
    )
    later = max(
        (held.loaded + held.optimizer_state + inside, memory.run),
        (beside + held.optimizer_state + memory.update.transient, "optimizer"),
    )
    return (
        PhasePeak(phase="load", num_bytes=held.loaded, where="parameters"),
        PhasePeak(phase=STEP_1, num_bytes=first[0], where=first[1]),
        PhasePeak(phase=STEP_2, num_bytes=later[0], where=later[1]),
    )


_WHY = {
    PARAMETERS: "parameters x bytes of the recipe",
    GRADIENTS: "parameters x bytes of the recipe, as far as backward has come",
    BUFFERS: "what the forward registers; scales and tables of 4-bit weights",
    AUTOCAST_CACHE: "profile: bf16 copies of weights",
    SAVED_ACTIVATIONS: "profile: allocated in forward, kept for backward",
    LOGITS: "profile: logits, log-probabilities, their gradients",
    TRANSIENTS: "profile: dropped within the phase",
    WORKSPACES: "cuBLAS's, and of attention's backward",
}


def items_at_peak(memory: StepMemory) -> tuple[MemoryItem, ...]:
    """List what is alive at the highest peak, which is always in a step 2+."""
    held, at_peak = memory.states, memory.items.copy()
    if int(at_peak.sum()) < held.gradients + memory.update.transient:
        at_peak[:] = 0
        at_peak[ITEM_NAMES.index(GRADIENTS)] = held.gradients
        at_peak[ITEM_NAMES.index(TRANSIENTS)] = memory.update.transient
    at_peak[ITEM_NAMES.index(PARAMETERS)] += held.parameters
    at_peak[ITEM_NAMES.index(BUFFERS)] += held.constants
    at_peak[ITEM_NAMES.index(OPTIMIZER_STATE)] += held.optimizer_state
    at_peak[ITEM_NAMES.index(WORKSPACES)] += memory.blas
    return tuple(
        MemoryItem(
            name=name,
            phase=STEP_2,
            num_bytes=int(num_bytes),
            where="device",
            why={**_WHY, OPTIMIZER_STATE: memory.update.why}[name],
        )
        for name, num_bytes in zip(ITEM_NAMES, at_peak, strict=True)
        if num_bytes
    )
