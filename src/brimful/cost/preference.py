"""What a preference task's reference model takes: bytes that last, a moment of its own, and work.

The rest of such a step is a causal step of two sequences for every pair: the same blocks, the same
logits, and a loss of a few numbers per token. The reference runs before it without gradients, and
the trained model's own forward pass has all of that alive too: so only a reference that is
offloaded, whose parts are then on the device, can be a peak.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import msgspec
import numpy as np

from brimful.cost.copied import link_bytes_per_s
from brimful.cost.efficiency import efficiency_of
from brimful.cost.family import (
    Family,
    family_counts,
    family_dimensions,
    family_micro_batches,
    family_variant,
)
from brimful.cost.profiles import (
    EVALUATED,
    EventKind,
    Profile,
    Run,
    Term,
    Work,
    is_shipped,
    load_profile,
)
from brimful.cost.programs import HALF, kernels_of, program_of
from brimful.cost.recipes import RECIPES
from brimful.cost.shapes import parameter_shapes
from brimful.cost.trained import frozen_bytes, frozen_element
from brimful.cost.trajectory import follow, kind_bytes
from brimful.hardware.cluster import Device
from brimful.models.config import layout_of, parameter_count
from brimful.models.layout import Parameter
from brimful.values.job import PREFERENCE, Job
from brimful.values.results import ITEM_NAMES, TRANSIENTS
from brimful.values.strategy import Attention, Reference


class Parts(NamedTuple):
    """Bytes of what an offloaded reference has on the device at a time.

    Attributes:
        embedding: Its largest embedding.
        block: A block; the largest, where there are several kinds.
        head: The output layer.
    """

    embedding: int
    block: int
    head: int


def second_model_bytes(job: Job) -> int:
    """Return the bytes of the base alone, held as the one that is trained, or trained beside."""
    if job.adapter is None:
        return parameter_count(job.model).total * RECIPES[job.precision].parameter
    return sum(frozen_bytes(job))


def second_model_sizes(job: Job) -> list[int]:
    """Return the bytes of every parameter of the base alone, of which none is quantised."""
    element = frozen_element(job)
    return [element * prod(shape) for shape in parameter_shapes(job.model)]


def reference_bytes(job: Job, reference: Reference, kernels: str) -> int:
    """Return what a reference holds on the device from the start to the end.

    ``kernels``: ``cuda`` or ``cpu``, whose host memory is the device's.
    """
    is_held = reference == "resident" or (reference == "offloaded" and kernels == "cpu")
    return second_model_bytes(job) if is_held else 0


def reference_parts(job: Job) -> Parts:
    """Return the parts of which one at a time is copied to the device."""
    layout = layout_of(job.model)
    element = frozen_element(job)

    def num_bytes(parameters: Sequence[Parameter]) -> int:
        return element * sum(parameter.num_elements for parameter in parameters)

    return Parts(
        embedding=max(num_bytes((parameter,)) for parameter in layout.embedding),
        block=max((num_bytes(run.parameters) for run in layout.blocks), default=0),
        head=element * job.model.vocab_size * job.model.hidden_size,
    )


def asks_by_itself(reference: Reference) -> bool:
    """Whether the reference's forward pass may be a step's peak."""
    return reference == "offloaded"


def missing_reference(job: Job, attention: Attention, reference: Reference, device: Device) -> str:
    """Say why a reference's forward pass has no formula; empty where it has one, or needs none."""
    key = _key(job, attention, device)
    if job.task != PREFERENCE or not asks_by_itself(reference) or is_shipped(key):
        return ""
    return (
        f"reference={reference} has no formula to predict from (no profile {key}); use resident, "
        f"or brimful simulate, which traces it"
    )


def is_judged(job: Job, attention: Attention, reference: Reference, device: Device) -> bool:
    """Whether it is known what a reference's forward pass asks for, or none is run."""
    runs = job.task == PREFERENCE and runs_reference(reference)
    return not runs or is_shipped(_key(job, attention, device))


def _key(job: Job, attention: Attention, device: Device) -> str:
    program = program_of(_as_judged(job), attention, kernels_of(device), "full")
    return f"{program.key}{EVALUATED}"


def _as_judged(job: Job) -> Job:
    """Return the job whose forward is the reference's: without adapters where that was traced.

    Under autocast, or in 4 bits, a base was traced with adapters only.
    """
    is_plain = job.adapter is not None and job.adapter.base == "same" and job.precision not in HALF
    return msgspec.structs.replace(job, method="full", adapter=None) if is_plain else job


def asked_bytes(job: Job, family: Family, attention: Attention, device: Device) -> int:
    """Return the peak of the reference's forward pass above what lasts; 0 where it is none.

    Known error: under autocast and in 4 bits adapters are among the events, which the reference
    has not.

    ``family``: the strategies; their checkpointing is of no meaning here.
    """
    if not asks_by_itself(family.reference):
        return 0
    plain = family._replace(body="plain", num_blocks=0, recompute="full")
    profile, runs = judging(job, plain, attention, device)
    sizes = kind_bytes(profile, family_dimensions(job, plain))[None, :, None]
    peak = follow(profile, runs, sizes, family_counts(job, plain))
    return round(float(peak.level[0, 0]))


def judging(
    job: Job, family: Family, attention: Attention, device: Device
) -> tuple[Profile, tuple[Run, ...]]:
    """Return what a reference runs on a micro-batch, the parts of an offloaded one among it."""
    profile = load_profile(_key(job, attention, device))
    runs = family_variant(job, profile, family).first
    if family.reference != "offloaded":
        return profile, runs
    # Let a part come before the events of every run, and go behind them.
    parts = reference_parts(job)
    item = ITEM_NAMES.index(TRANSIENTS)
    signed = [sign * part for part in parts for sign in (1, -1)]
    kinds = [EventKind((Term("", float(size)),), item, "") for size in signed]
    works: list[Work] = []
    placed: list[Run] = []
    first = len(profile.kinds)
    past_blocks = False
    for run in runs:
        past_blocks = past_blocks or run.group == "plain"
        which = 1 if run.group == "plain" else 2 * past_blocks
        come = first + 2 * which
        work = profile.works[run.work]
        works.append(msgspec.structs.replace(work, events=(come, *work.events, come + 1)))
        placed.append(msgspec.structs.replace(run, work=len(works) - 1))
    made = msgspec.structs.replace(profile, kinds=(*profile.kinds, *kinds), works=tuple(works))
    return made, tuple(placed)


def forward_runs(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """Return those of a micro-batch's runs that the reference runs too."""
    return tuple(run for run in runs if run.phase == "forward")


def runs_reference(reference: Reference) -> bool:
    """Whether every micro-batch runs the reference."""
    return reference not in {"none", "precomputed"}


def copied_as_moved(job: Job, family: Family, device: Device) -> float:
    """Return what copying an offloaded reference takes, as bytes that memory moves in that time.

    Its parts come one after the other over PCIe, and nothing is computed meanwhile. NaN where the
    rate of the link is unknown.
    """
    if family.reference != "offloaded":
        return 0.0
    times = family_micro_batches(job, family)
    copied = times * (second_model_bytes(job) + _copied_again(job))
    if device.kernels == "cpu":
        return 2.0 * copied
    rate = link_bytes_per_s(device)
    if rate is None:
        return float(np.nan)
    reached = device.memory_bytes_per_s * efficiency_of(device).memory_share
    return float(copied * reached / rate)


def _copied_again(job: Job) -> int:
    """Return the bytes of an output layer that is the embedding: each is copied by itself."""
    return reference_parts(job).head * job.model.tied_embeddings
