"""Peak memory of a job and a strategy, by item and phase.

Parameters and optimizer state are closed form; what a forward and a backward add comes from the
profile. Peak = the largest of: after loading; inside a step's forward or backward; inside its
update.
"""

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.additions import is_block
from brimful.cost.away_base import with_base_away
from brimful.cost.embedding import with_embedding
from brimful.cost.family import (
    Family,
    family_counts,
    family_dimensions,
    family_micro_batches,
    family_of,
    family_variant,
    runs_one,
)
from brimful.cost.leaving import away_gradients, holds_gradients, last_bytes, leaving_steps
from brimful.cost.load_transients import drawn_bytes
from brimful.cost.own_programs import blocks_of, chosen_program
from brimful.cost.preference import asked_bytes
from brimful.cost.profiles import Dimensions, Mark, Profile, Run, is_own, load_profile
from brimful.cost.programs import kernels_of
from brimful.cost.row_sums import chips_of, sums_behind
from brimful.cost.sending import sending_of, traces_base
from brimful.cost.sequences import written_out
from brimful.cost.shards import piece_bytes
from brimful.cost.spread import has_pieces, spread_step, with_pieces
from brimful.cost.states import States, states_of, updates_of
from brimful.cost.trained import has_biases, num_learning, trained_recipe
from brimful.cost.trajectory import Array, Peak, follow_step, kind_bytes
from brimful.cost.update import Update
from brimful.files.remembered import once_for_each
from brimful.hardware.cluster import Device
from brimful.hardware.cuda_chips import version_of
from brimful.hardware.cuda_libraries import libraries
from brimful.units import format_bytes
from brimful.values.job import Job
from brimful.values.plan import MemoryItem, PhasePeak
from brimful.values.results import (
    AUTOCAST_CACHE,
    BUFFERS,
    GATHERED,
    GRADIENTS,
    ITEM_NAMES,
    LOGITS,
    OPTIMIZER_STATE,
    PARAMETERS,
    REDUCED,
    REFERENCE,
    SAVED_ACTIVATIONS,
    STEP_1,
    STEP_2,
    TRANSIENTS,
    WORKSPACES,
)
from brimful.values.strategy import Attention, Strategy

NUM_BLAS_THREADS = 2
Step = tuple[Profile, tuple[Run, ...]]
Steps = list[Step]
Alter = Callable[[Step], Step]
"""What another program makes of the runs of a micro-batch (``published/``)."""


class StepMemory(NamedTuple):
    """What one strategy's step looks like.

    Attributes:
        states: Bytes that live across phases.
        updates: What the optimizer takes beside parameters and gradients.
        blas: Workspaces of cuBLAS, from the first forward and backward on.
        items: [items], bytes above parameters and state at the peak of forward and backward.
        run: Where that peak lies, in words.
        drawn: Of the largest parameter, where shards are drawn whole while loading.
        room: Of what stays from the first step on to receive messages in.
    """

    states: States
    updates: Update
    blas: int
    items: NDArray[np.int64]
    run: str
    drawn: int
    room: int = 0


def unaltered(step: Step) -> Step:
    """Return a micro-batch as our program runs it."""
    return step


def profile_for(job: Job, attention: Attention, device: Device, family: Family) -> Profile:
    """Load the profile of a job that has a formula (``formula.py``).

    Where blocks are of several kinds it is that of one number of checkpointed blocks.
    """
    (profile,) = profiles_for(job, attention, device, family)
    return profile


def profiles_for(
    job: Job, attention: Attention, device: Device, family: Family
) -> tuple[Profile, ...]:
    """Load the profile of a family; where kinds of blocks are several, one of each count."""
    recompute, gathers, tp, ep = family.recompute, family.gathers, family.tp, family.ep
    sending = sending_of(job, family)
    program = chosen_program(
        job, attention, kernels_of(device, family.fused), recompute,
        gathers=gathers, tp=tp, ep=ep, is_one=runs_one(job, family), sending=sending,
    )  # fmt: skip
    profile = load_profile(program.key)
    if not profile.sequence:
        return (profile,)
    blocks = blocks_of(job, sending)
    every = np.atleast_1d(np.asarray(family.num_blocks)).tolist()
    return tuple(written_out(profile, blocks, num_again) for num_again in every)


def follow_family(  # noqa: PLR0913 - what a step is made of
    job: Job,
    profile: Profile,
    device: Device,
    family: Family,
    *,
    by_item: bool,
    alter: Alter = unaltered,
) -> tuple[Peak, tuple[Run, ...]]:
    """Follow one step of every strategy of a family.

    ``by_item``: whether to keep a row per item rather than the total. ``alter``: what another
    program does instead in a micro-batch. Returns the peak above parameters and state, and the runs
    its index refers to.
    """
    steps = [alter(step) for step in family_steps(job, profile, family)]
    counts = family_counts(job, family)
    sizes = step_sizes(job, steps, family, by_item=by_item)
    behind = sums_behind(job, [family], [chips_of(job, device)])
    peak, runs = follow_step(steps, sizes, counts, behind)
    if adds_rows(job, device, family):
        there = rows_beside(job, profile, family)
        peak = with_embedding(job, family, peak, there=there, by_item=by_item)
    return peak, runs


def family_steps(job: Job, profile: Profile, family: Family) -> Steps:
    """Return what the first micro-batch runs, and every later one where there are several."""
    variant = family_variant(job, profile, family)
    if family.away.frozen and not traces_base(job, family.away):
        profile, variant = with_base_away(job, profile, variant, family_dimensions(job, family))
    if family.is_spread:
        return spread_step(job, profile, variant, family)
    if family.away.optimizer:
        return leaving_steps(job, profile, variant, family)
    accumulates = family_micro_batches(job, family) > 1
    return [(profile, variant.first), (profile, variant.later)][: 1 + accumulates]


def step_sizes(job: Job, steps: Steps, family: Family, *, by_item: bool) -> list[Array]:
    """Return the bytes of every kind: [rows, kinds, strategies or 1] for each micro-batch."""
    pieces, dims = piece_bytes(job, family), family_dimensions(job, family)
    return [_sizes(each, dims, pieces, by_item=by_item) for each, _ in steps]


def adds_rows(job: Job, device: Device, family: Family) -> bool:
    """Whether the rows of the embedding's gradient are added up when all gradients are whole."""
    return device.kernels == "cuda" and job.method == "full" and not family.gathers


def rows_beside(job: Job, profile: Profile, family: Family, dims: Dimensions | None = None) -> Any:
    """Return what is there of gradients when the embedding's rows are added up, and gone later.

    ``dims``: sizes, where these differ between strategies. Returns bytes: a number, or
    [strategies]. Of gradients that stay, nothing: they are there later too.
    """
    if not family.away.optimizer:
        return 0.0
    if holds_gradients(job, family):
        return num_learning(job) * trained_recipe(job).gradient
    variant = family_variant(job, profile, family)
    sizes = family_dimensions(job, family) if dims is None else dims
    gradients = away_gradients(job, profile, variant, family)
    return last_bytes(profile, variant, sizes, tied=job.model.tied_embeddings, gradients=gradients)


def _sizes(profile: Profile, dims: Dimensions, pieces: Array, *, by_item: bool) -> Array:
    """Return the change of live bytes of every kind: [rows, kinds, strategies or 1]."""
    sizes = kind_bytes(profile, dims)[:, None]
    if has_pieces(profile):
        sizes = with_pieces(sizes, pieces)
    if not by_item:
        return sizes[None]
    item = np.array([kind.item for kind in profile.kinds])
    mine = item == np.arange(len(ITEM_NAMES))[:, None]
    return np.where(mine[:, :, None], sizes, 0.0)


def blas_bytes(
    job: Job, family: Family, device: Device, profile: Profile | None = None
) -> NDArray[np.int64]:
    """Return what cuBLAS keeps for the forward's thread and for the backward's: [strategies].

    A profile of the job's own says which of them are made. Else each has a workspace of cuBLAS;
    each that runs a linear layer with a bias, which blocks that are checkpointed in full do in
    backward too, one of cuBLASLt.

    Source: ``aten/src/ATen/cuda/CublasHandlePool.cpp``; PyTorch's engine runs backward on a thread
    of its own.
    """
    num_blocks = np.atleast_1d(np.asarray(family.num_blocks))
    if device.kernels != "cuda":
        return np.zeros(len(num_blocks), dtype=np.int64)
    cublas = libraries().cublas_bytes(version_of(device.capability))
    if profile is not None and is_own(profile.key):
        marks = _marks_of(profile, family_variant(job, profile, family).first)
        light = marks["cuBLASLt"] * min(libraries().cublas_lt_bytes, cublas)
        return np.full(len(num_blocks), marks["cuBLAS"] * cublas + light, dtype=np.int64)
    again = (num_blocks > 0) & (family.recompute == "full")
    num_biased = (1 + again) * has_biases(job.model)
    return NUM_BLAS_THREADS * cublas + num_biased * min(libraries().cublas_lt_bytes, cublas)


@once_for_each
def _marks_of(profile: Profile, runs: tuple[Run, ...]) -> Counter[Mark]:
    """Count how often a micro-batch makes what is marked."""
    marked = {place for place, kind in enumerate(profile.kinds) if kind.mark}
    marks = Counter[Mark]()
    for number, times in Counter(run.work for run in runs).items():
        for event in marked.intersection(profile.works[number].events):
            of_work = profile.works[number].events.count(event)
            marks[profile.kinds[event].mark] += times * of_work
    return marks


def step_memory(
    job: Job, strategy: Strategy, profile: Profile, device: Device, alter: Alter = unaltered
) -> StepMemory:
    """Find the peak of one strategy's forward and backward, by item."""
    family = family_of(job, strategy)
    peak, runs = follow_family(job, profile, device, family, by_item=True, alter=alter)
    at_peak = np.rint(peak.level[:, 0]).astype(np.int64)
    run = describe_run(runs, int(peak.run[0]))
    updates = updates_of(job, family, device)
    kept, transient = map(_only, updates[:2])
    held = States(*map(_only, states_of(job, family, updates, device.kernels)))
    asked = asked_bytes(job, family, strategy.attention, device)
    beside = held.gradients * (family_micro_batches(job, family) > 1)
    if asked and asked + beside > at_peak.sum():
        run = "forward of the reference model"
        at_peak[:] = 0
        at_peak[ITEM_NAMES.index(GRADIENTS)] = beside
        at_peak[ITEM_NAMES.index(TRANSIENTS)] = asked
    return StepMemory(
        states=held,
        updates=Update(kept, transient, updates.why),
        blas=int(blas_bytes(job, family, device, profile)[0]),
        items=at_peak,
        run=run,
        drawn=_only(drawn_bytes(job, family)),
    )


def _only(column: Array) -> int:
    """Return the number of the one strategy that there is."""
    return round(float(column[0]))


def describe_run(runs: tuple[Run, ...], index: int) -> str:
    """Say in words where in a step a run lies, e.g. ``backward of the first plain block``."""
    run = runs[index]
    if run.group == "chunk":
        return f"{run.phase} of a chunk of the loss"
    if is_block(run) and run.role == "other":
        return f"{run.phase} of {_numbered(runs, index)}"
    if run.group:
        return f"{run.phase} of the {run.role} {run.group} block"
    behind = itertools.takewhile(lambda r: r.phase == run.phase, reversed(runs[:index]))
    past_blocks = any(other.group in {"plain", "checkpointed"} for other in behind)
    part = "final norm and loss" if past_blocks == (run.phase == "forward") else "embedding"
    return f"{run.phase} of the {part}"


def _numbered(runs: tuple[Run, ...], index: int) -> str:
    """Say which block a run is of where each has its own, e.g. ``plain block 5 of 61``."""
    start = max(i for i in range(index + 1) if i == 0 or runs[i - 1].phase != runs[i].phase)
    alike = list(itertools.takewhile(lambda run: run.phase == runs[index].phase, runs[start:]))
    num = sum(map(is_block, alike))
    place = sum(map(is_block, alike[: index - start + 1]))
    number = place if runs[index].phase == "forward" else num + 1 - place
    return f"{runs[index].group} block {number} of {num}"


def phase_peaks(memory: StepMemory) -> tuple[PhasePeak, ...]:
    """Return the peak of every phase.

    Optimizer state is made before the first step, so that its steps are alike.
    """
    held, kept = memory.states, memory.blas + memory.room
    inside, beside = int(memory.items.sum()) + kept, held.loaded + held.gradients + kept
    step = max(
        (held.loaded + held.optimizer_state + inside, memory.run),
        (beside + held.optimizer_state + memory.updates.transient, "optimizer"),
    )
    return (
        PhasePeak(phase="load", num_bytes=held.loaded + memory.drawn, where="parameters"),
        PhasePeak(phase=STEP_1, num_bytes=step[0], where=step[1]),
        PhasePeak(phase=STEP_2, num_bytes=step[0], where=step[1]),
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
    GATHERED: "closed form: whole blocks, the one that runs and the one that comes",
    REDUCED: "closed form: whole gradients on their way, a block's or (DDP) all",
    REFERENCE: "the second model: parameters x bytes of the recipe",
}


def _parameters_why(held: States) -> str:
    """Say how many of the parameters' bytes train, where some do not: adapters beside a base."""
    if not int(held.frozen):
        return _WHY[PARAMETERS]
    base, trained = format_bytes(int(held.frozen)), format_bytes(int(held.trained))
    return f"frozen {base}, trained {trained}: {_WHY[PARAMETERS]}"


def items_at_peak(memory: StepMemory) -> tuple[MemoryItem, ...]:
    """List what is alive at the highest peak, which is always in a step 2+."""
    held, at_peak = memory.states, memory.items.copy()
    whys = {**_WHY, OPTIMIZER_STATE: memory.updates.why, PARAMETERS: _parameters_why(held)}
    if int(at_peak.sum()) < held.gradients + memory.updates.transient:
        at_peak[:] = 0
        at_peak[ITEM_NAMES.index(GRADIENTS)] = held.gradients
        at_peak[ITEM_NAMES.index(TRANSIENTS)] = memory.updates.transient
    at_peak[ITEM_NAMES.index(PARAMETERS)] += held.parameters
    at_peak[ITEM_NAMES.index(REDUCED if held.gradients else GRADIENTS)] += held.buckets
    at_peak[ITEM_NAMES.index(BUFFERS)] += held.constants
    at_peak[ITEM_NAMES.index(OPTIMIZER_STATE)] += held.optimizer_state
    at_peak[ITEM_NAMES.index(WORKSPACES)] += memory.blas
    at_peak[ITEM_NAMES.index(TRANSIENTS)] += memory.room
    at_peak[ITEM_NAMES.index(REFERENCE)] += held.reference
    return tuple(
        MemoryItem(
            name=name,
            phase=STEP_2,
            num_bytes=int(num_bytes),
            where="device",
            why=whys[name],
        )
        for name, num_bytes in zip(ITEM_NAMES, at_peak, strict=True)
        if num_bytes
    )
