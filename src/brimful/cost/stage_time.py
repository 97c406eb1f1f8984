"""Seconds of a pipeline's step: its stages' forwards and backwards, and what they wait for.

A stage's seconds are those of its blocks and of the ends that it has, by the formulas of one device
(``step.py``). The row's are those of the slowest device for every micro-batch, and of all others
once, while the pipeline fills and drains; then gradients are reduced and parameters updated. A
stage's share of a block's collectives among devices that share every matrix is waited for; gathers
run beside the work.

Known error of the row against ``pipeline_replay``: tested, see ``tests/cost/test_stage_time.py``.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple, cast

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from brimful.cost.additions import is_block
from brimful.cost.attending import scores_of
from brimful.cost.comm import collective_seconds, overlapped_seconds
from brimful.cost.efficiency import ProductSize, efficiency_of, size_of
from brimful.cost.exchange import exchange_seconds, sent_of
from brimful.cost.expert_exchange import experts_seconds
from brimful.cost.expert_shards import part_experts
from brimful.cost.family import family_chunks, family_dimensions
from brimful.cost.pipeline import Formula, Pipeline, StageSeconds, message_seconds
from brimful.cost.profiles import (
    PLACE,
    Body,
    Dimensions,
    Profile,
    Run,
    has_profile,
    is_place,
    load_profile,
    variant_key,
    with_chunks,
)
from brimful.cost.programs import recomputing_all
from brimful.cost.stage_memory import device_states, updated_on
from brimful.cost.stage_site import (
    Site,
    Stage,
    blocks_in,
    classes_of,
    message_bytes,
    shapes_of,
    stages_on,
)
from brimful.cost.step import StepWork, step_seconds, update_on_device
from brimful.cost.traffic import experts_traffic, gather_seconds, reduce_seconds, sent_seconds
from brimful.cost.trajectory import Array, evaluate_terms, num_special
from brimful.cost.update import update_flops
from brimful.hardware.cluster import Cluster
from brimful.techniques.parallel.stages import Schedule, blocks_of_stages, stages_of_device
from brimful.values.strategy import num_checkpointed, num_micro_batches, split_of

_AMOUNTS = 4
_SECONDS = 3
"""Columns of seconds: products, bytes moved, launches."""


class Rates(NamedTuple):
    """Seconds of one micro-batch by part of the model: [2 phases, 3 columns] each.

    Attributes:
        embedding: What comes before the blocks.
        plain: Every block: [blocks, 2 phases, 3 columns].
        again: Every block, computed again in backward: likewise.
        head: The last norm, the head and the loss.
        waited: Of a plain block, for the devices that share its matrices: [2 phases].
        waited_again: Of one that is computed again.
        waited_ends: Of both ends together.
    """

    embedding: Array
    plain: Array
    again: Array
    head: Array
    waited: Array
    waited_again: Array
    waited_ends: Array


def rates_of(site: Site, cluster: Cluster) -> Rates | None:
    """Return the seconds of a model's parts; None where a rate of the device is unknown."""
    job, family = site.job, site.family
    dims, chunks = family_dimensions(job, family), family_chunks(job, family)
    profile, every, found = load_profile(site.key), dict[str, Array](), {}
    for key in dict.fromkeys((recomputing_all(site.key), site.key)):
        if has_profile(key):
            every |= _amounts(load_profile(key), dims, chunks)
    scores = scores_of(job, site.strategy.attention, cluster.device)
    for name, amounts in every.items():
        seconds = step_seconds(StepWork(*amounts.T), job, cluster.device, _size(site), scores)
        if seconds is None:
            return None
        found[name] = np.stack(seconds[:_SECONDS], axis=1)
    waited, again, ends = _waited(site, cluster)
    kinds = blocks_in(job.model).kinds if profile.sequence else ("",) * job.model.num_layers
    none = np.zeros((2, _SECONDS))
    plain, recomputed = (
        np.stack([found.get(f"{group}{kind}", none) for kind in kinds])
        for group in ("plain", "checkpointed")
    )
    ends_of = [found.get(name, none) for name in ("before", "behind")]
    return Rates(ends_of[0], plain, recomputed, ends_of[1], waited, again, ends)


def _size(site: Site) -> ProductSize:
    return size_of(site.job, site.strategy.micro_batch, tp=site.family.tp)


def _amounts(profile: Profile, dims: Dimensions, num_chunks: int) -> dict[str, Array]:
    """Return the work of one block of each kind, and of what lies around: [2 phases, amounts].

    A kind of block is named ``plain`` or ``checkpointed``, and its number where there are several.
    """
    found = defaultdict[str, Array](lambda: np.zeros((2, _AMOUNTS)))
    for body in _bodies_told(profile, num_chunks):
        runs = profile.variants[variant_key(body, num_chunks=num_chunks)].later
        told = defaultdict[str, Array](lambda: np.zeros((2, _AMOUNTS)))
        for row, phase in enumerate(("forward", "backward")):
            mine = tuple(r for r in with_chunks(runs, num_chunks) if r.phase == phase)
            first = next(place for place, run in enumerate(mine) if is_a_block(run))
            sides = ("before", "behind") if phase == "forward" else ("behind", "before")
            for place, run in enumerate(mine):
                amounts = _amounts_of(profile, run, dims)
                if not is_a_block(run):
                    times = num_chunks - num_special("chunk", mine) if run.role == "middle" else 1
                    told[sides[place > first]][row] += times * amounts
                elif not profile.sequence:
                    told[run.group][row] += amounts * (run.role == "middle")
                else:
                    group, _, number = run.group.partition(PLACE)
                    kind = profile.sequence[int(number) % len(profile.sequence)]
                    told[f"{group}{kind}"][row] = amounts
        found.update(told)
    return found


def is_a_block(run: Run) -> bool:
    """Whether a run is of a block, written out or not."""
    return is_block(run) or is_place(run.group)


def _bodies_told(profile: Profile, num_chunks: int) -> list[Body]:
    """Return bodies that show every kind of block there is: a mixed one, or both others."""
    bodies: tuple[Body, ...] = ("checkpointed", "plain", "mixed")
    return [body for body in bodies if variant_key(body, num_chunks=num_chunks) in profile.variants]


def _amounts_of(profile: Profile, run: Run, dims: Dimensions) -> Array:
    work = profile.works[run.work]
    formulas = (work.matrix_flops, work.attention_flops, work.moved_bytes)
    return np.array([*(evaluate_terms(terms, dims) for terms in formulas), work.num_ops], float)


def _waited(site: Site, cluster: Cluster) -> tuple[Array, Array, Array]:
    """Return what a block waits for, one that is computed again, and both ends: [2 phases]."""
    family = site.family._replace(num_blocks=0.0)

    def seconds(num_layers: int, again: float) -> float:
        job = replace(site.job, model=replace(site.job.model, num_layers=num_layers))
        sent = sent_of(job, family)._replace(num_blocks=np.array([again]))
        return float(exchange_seconds(job, family, cluster, sent)[0])

    if family.ep > 1:
        return _waited_for_experts(site, cluster)
    if family.tp == 1:
        return np.zeros(2), np.zeros(2), np.zeros(2)
    one, two, more = seconds(1, 0.0), seconds(2, 0.0), seconds(1, 1.0)
    block, ends, recomputed = two - one, 2 * one - two, more - one
    half = np.array([0.5, 0.5])
    return block * half, block * half + np.array([0.0, recomputed]), ends * half


def _waited_for_experts(site: Site, cluster: Cluster) -> tuple[Array, Array, Array]:
    """Return the same of what devices that part experts send: of all blocks the mean."""
    job, family = site.job, site.family
    num_layers = job.model.num_layers
    sent = sent_of(job, family)
    none, every = (
        float(experts_seconds(job, family, cluster, sent._replace(num_blocks=np.array([num])))[0])
        for num in (0.0, float(num_layers))
    )
    block, again = none / num_layers, (every - none) / num_layers
    half = np.array([0.5, 0.5]) * block
    return half, half + np.array([0.0, again]), np.zeros(2)


class Way(NamedTuple):
    """How a row works, whatever is checkpointed.

    Attributes:
        schedule: The order of work.
        num_micro_batches: Of a step.
        num_blocks: [devices, stages of each].
        blocks: Of every device, which it has, in the order in which they are checkpointed.
        send_s: Seconds of a message.
    """

    schedule: Schedule
    num_micro_batches: int
    num_blocks: NDArray[np.int64]
    blocks: tuple[tuple[int, ...], ...]
    send_s: float


def way_of(site: Site, cluster: Cluster) -> Way:
    """Return how the row of a strategy works.

    ``cluster``: says the links; NaN where one is unknown.
    """
    strategy = site.strategy
    places = range(strategy.pp)
    blocks = np.array([[stage.num_blocks for stage in stages_on(site, p)] for p in places])
    stride = cluster.num_devices // strategy.pp
    send_s = collective_seconds("send", message_bytes(site), strategy.pp, cluster, stride)
    num = num_micro_batches(site.job, strategy)
    ranges = blocks_of_stages(site.job.model, split_of(strategy))
    which = tuple(
        tuple(chain.from_iterable(ranges[i] for i in stages_of_device(split_of(strategy), place)))
        for place in places
    )
    return Way(strategy.pp_schedule, num, blocks, which, float(send_s))


def device_seconds(rates: Rates, way: Way, num_checkpointed: Array) -> tuple[Array, Array]:
    """Return the seconds of a micro-batch on every device: of its work, and of what it waits for.

    ``num_checkpointed``: [strategies], of each device's blocks. Returns [devices, 2 phases, 3
    columns, strategies], and [devices, 2 phases, strategies].
    """
    blocks = way.num_blocks.sum(1)[:, None]
    again = np.minimum(num_checkpointed, blocks)
    plain = blocks - again
    work = np.stack([
        _of_blocks(rates, which, num) for which, num in zip(way.blocks, again, strict=True)
    ])  # fmt: skip
    waited = np.einsum("ds,p->dps", plain, rates.waited)
    waited += np.einsum("ds,p->dps", again, rates.waited_again)
    for place, end in ((0, rates.embedding), (-1, rates.head)):
        work[place] += end[..., None]
        waited[place] += rates.waited_ends[:, None] / 2
    return work, waited


def _of_blocks(rates: Rates, which: Sequence[int], again: Array) -> Array:
    """Return the seconds of a device's blocks, so many first ones of which are computed again.

    Returns [2 phases, 3 columns, strategies].
    """
    own = np.array(which)
    none = np.zeros((1, 2, _SECONDS))
    first = np.concatenate([none, np.cumsum(rates.again[own], axis=0)])
    plain = np.concatenate([none, np.cumsum(rates.plain[own], axis=0)])
    num = again.astype(np.int64)
    seconds: Array = np.moveaxis(first[num] + plain[-1] - plain[num], 0, -1)
    return seconds


def row_seconds(way: Way, both: Array) -> Array:
    """Return the seconds of all micro-batches through a row: [strategies].

    The slowest device works on every one, and the others' work on one of them fills and drains the
    row, a v-th of it where each has v stages. GPipe's forwards and backwards do so apart.

    ``both``: [devices, 2 phases, strategies], seconds of a micro-batch.
    """
    num, (devices, chunks) = way.num_micro_batches, way.num_blocks.shape
    shape, times = Pipeline(devices, num, chunks), StageSeconds(0.0, 0.0, way.send_s)
    messages = message_seconds(cast("Formula", way.schedule), shape, times)
    if way.schedule == "gpipe":
        apart: Array = (both.sum(0) + (num - 1) * both.max(0)).sum(0)
        return apart + messages
    each = both.sum(1)
    row_s: Array = (each.sum(0) - each.max(0)) / chunks + num * each.max(0) + messages
    return row_s


class Behind(NamedTuple):
    """Seconds of a step that hang on no checkpoint.

    Attributes:
        gathers: Of the device that gathers longest, beside its work.
        update: Of the one that reduces and updates longest, behind it.
    """

    gathers: float
    update: float


def behind(site: Site, cluster: Cluster) -> Behind:
    """Return the seconds of collectives beside and behind a row's work, and of its update.

    ZeRO-3 gathers a block again for most micro-batches, once: what a backward has gathered is
    there for the next one. ZeRO-2 gathers once a step. Reductions wait for the last backward.
    """
    every = [_collectives(site, cluster, stages) for stages in classes_of(site)]
    updates = [_update_seconds(site, stages) for stages in classes_of(site)]
    last = [reduces + update for (_, reduces), update in zip(every, updates, strict=True)]
    return Behind(max(gathers for gathers, _ in every), max(last))


def _collectives(site: Site, cluster: Cluster, stages: tuple[Stage, ...]) -> tuple[float, float]:
    """Return the seconds of a device's gathers, and of its reductions, in one step."""
    job, family = site.job, site.family
    if not family.is_spread:
        return 0.0, 0.0
    shards = np.array([float(site.strategy.dp_shard)])
    gathers = reduces = 0.0
    times = num_micro_batches(job, site.strategy) + 1 if family.zero == 3 else 1  # noqa: PLR2004
    if family.zero == 1:
        numbers = sum(one.num for each in stages for one in shapes_of(site, each).trained)
        sent = sent_seconds(job, np.array([float(numbers)]), family, cluster)
        reduces += float(np.atleast_1d(sent)[0])
    experts = part_experts(job, family.ep) if family.ep > 1 else []
    for stage in stages:
        held = shapes_of(site, stage)
        for stacks, num in zip(experts, held.numbers, strict=False):
            if stacks and num:
                gathered, reduced = experts_traffic(job, family, cluster, stacks)
                gathers += num * times * float(gathered[0])
                reduces += num * float(reduced[0])
        units = [(*each, times) for each in zip(held.blocks, held.numbers, strict=True)]
        for part, num, again in (*units, (held.rest, bool(held.rest.every), 1)):
            if not num:
                continue
            sums = reduce_seconds(job, part, family, shards, cluster)
            reduces += num * float(np.atleast_1d(sums)[0])
            if family.gathers:
                once = gather_seconds(job, part, family, shards, cluster)
                gathers += num * again * float(once[0])
    return gathers, reduces


def _update_seconds(site: Site, stages: tuple[Stage, ...]) -> float:
    held, device = device_states(site, stages)[0], site.device
    if not device.memory_bytes_per_s:
        return math.nan  # a machine that was not measured
    moved = update_on_device(site.job, device, held.gradients, held.trained + held.optimizer_state)
    parts = [shapes_of(site, stage) for stage in stages]
    flops = update_flops(site.job, lambda: chain.from_iterable(updated_on(site, parts)))
    none = np.zeros(())
    work = StepWork(np.array(flops), none, none, none)
    products = step_seconds(work, site.job, device, _size(site), ())
    if products is None:
        return math.nan
    moved_s = moved / (device.memory_bytes_per_s * efficiency_of(device).memory_share)
    return float(moved_s + products.matrix_s)


class Row(NamedTuple):
    """Where the seconds of a step of a row of devices go.

    Attributes:
        busy: Of the slowest device, all micro-batches: products, bytes moved, launches.
        total_s: Of the whole step.
        idle_share: Of all devices' time before gradients are reduced, 0 to 1.
    """

    busy: Array
    total_s: float
    idle_share: float


def step_of_row(site: Site, cluster: Cluster) -> Row | None:
    """Return the seconds of a step of one strategy; None where a rate of the device is unknown."""
    rates = rates_of(site, cluster)
    if rates is None:
        return None
    way, strategy = way_of(site, cluster), site.strategy
    again = num_checkpointed(strategy, num_layers=site.job.model.num_layers)
    work, waited = device_seconds(rates, way, np.array([again]))
    both = work.sum(2) + waited
    row_s, after = row_seconds(way, both), behind(site, cluster)
    slowest, num = int(both.sum(1).argmax()), way.num_micro_batches
    idle = 1 - num * both.sum() / (strategy.pp * row_s[0])
    total_s = total_seconds(row_s, after)[0]
    return Row(num * work[slowest, ..., 0].sum(0), float(total_s), float(idle))


def total_seconds(row_s: Array, after: Behind) -> Array:
    """Return the seconds of a step: [strategies]."""
    beside: Array = overlapped_seconds(row_s, np.asarray(after.gathers))
    return beside + after.update
