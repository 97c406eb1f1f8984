"""Peak memory of the devices of a pipeline, each with its own stages.

A device holds parameters, optimizer state and room for messages; between two works what its
micro-batches in flight keep, gathered parameters and whole gradients (``situations.py``); within a
work what that one allocates (``stage_runs.py``). The peak is the highest of these sums.

Known error: what torch keeps between two works beside that, a few numbers per micro-batch.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.additions import NUM_PIECES, Piece, Way
from brimful.cost.embedding import embedding_workspace
from brimful.cost.expert_shards import parted_parts
from brimful.cost.family import body_of, family_dimensions, family_tokens
from brimful.cost.fsdp_units import EXPERTS, REST, units_of
from brimful.cost.memory import StepMemory, blas_bytes, describe_run
from brimful.cost.micro_batch import marked_bytes
from brimful.cost.pipeline_orders import Row
from brimful.cost.profiles import Group, is_own, load_profile
from brimful.cost.programs import HALF
from brimful.cost.recipes import FP32_BYTES
from brimful.cost.row_sums import chips_of, sums_behind
from brimful.cost.sequences import Blocks
from brimful.cost.shards import computed_bytes, part_pieces
from brimful.cost.situations import Situation, multiples, situations
from brimful.cost.spread import has_pieces, with_pieces
from brimful.cost.stage_first import Ends, Part
from brimful.cost.stage_parts import StageParts, frozen_bytes_of
from brimful.cost.stage_runs import REDUCES, Act, Phase, StageRuns, stage_runs
from brimful.cost.stage_site import (
    Site,
    Stage,
    blocks_in,
    drawn_on,
    key_of,
    message_bytes,
    message_of,
    shapes_of,
    stages_on,
    stream_element,
)
from brimful.cost.states import States, updated_apart
from brimful.cost.trained import trained_recipe
from brimful.cost.trajectory import follow, kinds_bytes
from brimful.cost.update import Update, update_apart, updater_of
from brimful.techniques.optimizers import Updated
from brimful.techniques.parallel.stages import ONE_STAGE
from brimful.values.results import (
    GATHERED,
    GRADIENTS,
    ITEM_NAMES,
    REDUCED,
    SAVED_ACTIVATIONS,
    TRANSIENTS,
    WORKSPACES,
)
from brimful.values.strategy import num_micro_batches, split_of

Array = NDArray[np.float64]
_ROWS = len(ITEM_NAMES)
_TRANSIENT, _SAVED, _GRADIENT, _GATHERED, _REDUCED, _WORKSPACE = map(
    ITEM_NAMES.index, (TRANSIENTS, SAVED_ACTIVATIONS, GRADIENTS, GATHERED, REDUCED, WORKSPACES)
)
_WHATEVER = (Blocks((), ()), 0)
"""Blocks that are all alike, however many of them are checkpointed."""
_TOKEN_BYTES = 16
"""Of a token: input and label, int64."""


class Piecewise(NamedTuple):
    """What one stage adds to a device's level, in bytes by item: [items] each.

    Attributes:
        kept: By a micro-batch in flight.
        gathered: By its blocks where they are whole.
        begun: By what is in no block, gathered.
        made: By its whole gradients.
        reduced: By shards of them.
        ahead: By buffers of all of its parameters, gathered ahead of its turn.
        pieces: [pieces, 1], bytes of what sharding adds.
    """

    kept: Array
    gathered: Array
    begun: Array
    made: Array
    reduced: Array
    ahead: Array
    pieces: Array

    @property
    def held(self) -> Array:
        """What there may be several of, in the order of ``multiples``: [6, items]."""
        return np.stack([self.kept, self.gathered, self.begun, self.made, self.reduced, self.ahead])


# -- one work --


def part_of(site: Site, stage: Stage) -> Part:
    """Return what of a profile a stage runs."""
    family = site.family
    way = None
    if family.is_spread and family.gathers:
        widens = site.job.precision in HALF
        way = Way(
            family.zero, "hold", is_first=True, is_last=False, widens=widens, tied=False,
            parted=site.once("parted", partial(parted_parts, site.job, family)),
        )  # fmt: skip
    chunks = _num_chunks(site) if stage.ends.is_last else 1
    body = body_of(stage.num_checkpointed, stage.num_blocks)
    is_alike = len(set(site.once("blocks", partial(blocks_in, site.job.model)).kinds)) == 1
    return Part(
        key_of(site, stage), body, chunks, stage.ends, way, stage.num_blocks == 1,
        message_of(site), *(_WHATEVER if is_alike else (stage.blocks, stage.num_checkpointed)),
    )  # fmt: skip


def _num_chunks(site: Site) -> int:
    tokens = family_tokens(site.job, site.family)
    return -(-tokens // family_dimensions(site.job, site.family).C)


def counts_of(site: Site, stage: Stage) -> dict[Group, Array]:
    """Count a stage's blocks, and the pieces of its loss: [1] each."""
    again = np.array([float(stage.num_checkpointed)])
    return {
        "checkpointed": again,
        "plain": stage.num_blocks - again,
        "chunk": np.array([float(_num_chunks(site) if stage.ends.is_last else 1)]),
    }


def _sizes(site: Site, found: StageRuns, pieces: Array) -> Array:
    """Return bytes of every kind by item: [items, kinds, 1]."""
    profile = found.profile
    sizes, mine = site.once("kinds", partial(_kinds, site, found), id(profile.kinds), site.cuts)
    if has_pieces(profile):
        sizes = with_pieces(sizes, pieces)
    return np.where(mine, sizes, 0.0)


def _kinds(site: Site, found: StageRuns) -> tuple[Array, NDArray[np.bool_]]:
    """Return the bytes of every kind, and which item each is of: [items, kinds, 1]."""
    dims = family_dimensions(site.job, site.family)
    item = np.array([kind.item for kind in found.profile.kinds])
    mine = item == np.arange(_ROWS)[:, None]
    return kinds_bytes(found.profile, dims, 1), mine[:, :, None]


def _piecewise(site: Site, stage: Stage) -> Piecewise:
    pieces, numbers = pieces_of(site, stage), _row_of
    held = shapes_of(site, stage)
    size = _gradient_bytes(site) * sum(each.num for each in held.trained)

    def blocks(*some: Piece) -> float:
        every = np.sum([pieces[piece::NUM_PIECES, 0] for piece in some], axis=0)
        return float(sum(num * each for num, each in zip(held.numbers, every, strict=True)))

    shards = blocks(Piece.BLOCK_SHARD, Piece.EXPERTS_SHARD) + pieces[Piece.REST_SHARD, 0]
    ahead = blocks(Piece.BLOCK_GATHERED, Piece.EXPERTS_GATHERED) + pieces[Piece.REST_GATHERED, 0]
    gathers = site.family.gathers  # what DDP and ZeRO-1 run with is whole already
    return Piecewise(
        kept=_kept(site, stage, pieces),
        gathered=numbers(_GATHERED, gathers * blocks(Piece.BLOCK, Piece.EXPERTS)),
        begun=numbers(_GATHERED, gathers * pieces[Piece.REST, 0]),
        made=numbers(_GRADIENT, size),
        reduced=numbers(_GRADIENT, shards),
        ahead=numbers(_GATHERED, ahead),
        pieces=pieces,
    )


def _row_of(item: int, num_bytes: float) -> Array:
    rows = np.zeros(_ROWS)
    rows[item] = num_bytes
    return rows


def _gradient_bytes(site: Site) -> int:
    """Return the bytes of a whole gradient: held in the type that it is reduced in."""
    recipe = trained_recipe(site.job)
    if site.family.gathers and site.job.precision not in HALF:
        return computed_bytes(site.job.precision)
    return recipe.gradient


def pieces_of(site: Site, stage: Stage) -> Array:
    """Return the bytes of pieces, those of no block being the stage's own: [pieces, 1]."""
    parts = shapes_of(site, stage)
    return part_pieces(site.job, site.family, (*parts.blocks, parts.rest))


def _kept(site: Site, stage: Stage, pieces: Array) -> Array:
    """Return what a micro-batch keeps from its forward on: [items].

    Room that is dropped within the forward is none of it; a stage's result is, which in fp32 the
    next block would have kept too.
    """
    part = part_of(site, stage)
    part = part._replace(is_single=False)  # of one block first, last, less one middle
    found = stage_runs(part, Act("forward", is_gathered=True, is_first=False))
    sizes = _sizes(site, found, np.zeros_like(pieces))
    kept: Array = follow(found.profile, found.runs, sizes, counts_of(site, stage)).end[:, 0]
    kept = kept.copy()
    kept[_TRANSIENT] = 0.0
    if not stage.ends.is_last and stream_element(site) < FP32_BYTES:
        kept[_SAVED] += message_bytes(site)
    return kept


class Level(NamedTuple):
    """A level above what a device holds throughout: [items] bytes, and where it is."""

    items: Array
    where: str


def _highest(site: Site, place: int, stages: tuple[Stage, ...]) -> Level:
    """Find the highest level of a device's step: of every situation, and within its work."""
    own = [_of_stage(site, stage) for stage in stages]
    adds = [
        each.once("adds", partial(_piecewise, each, stage), stage, each.cuts)
        for each, stage in zip(own, stages, strict=True)
    ]
    strategy = site.strategy
    row = Row(strategy.pp, num_micro_batches(site.job, strategy), strategy.stages_per_device)
    zero = strategy.zero if site.family.gathers else 0
    keeps = site.device.kernels == "cpu"
    every = situations(strategy.pp_schedule, row, place, zero, keeps_waited=keeps)
    starts = multiples(every) @ np.concatenate([_row_of(_TRANSIENT, message_bytes(site))[None],
                                                *(add.held for add in adds)])  # fmt: skip
    totals = starts.sum(1)
    fullest_of: dict[tuple[int, Act], int] = {}  # of one work the highest start decides
    for index in np.argsort(totals):
        fullest_of[every[index].chunk, every[index].act] = int(index)
    levels = [
        level
        for index in fullest_of.values()
        for level in _levels(
            own[every[index].chunk],
            every[index],
            starts[index],
            (stages[every[index].chunk], adds[every[index].chunk]),
        )
    ]
    return max(levels, key=lambda level: float(level.items.sum()))


def _of_stage(site: Site, stage: Stage) -> Site:
    """Return the site of one stage: without the loss, how that is cut is nothing to it."""
    if stage.ends.is_last:
        return site
    return site._replace(family=site.family._replace(loss_chunks=1))


def _levels(
    site: Site, now: Situation, start: Array, where: tuple[Stage, Piecewise]
) -> Iterator[Level]:
    """Yield what may be the peak of a situation."""
    stage, add = where
    if now.act == REDUCES:
        yield _reducing(site, stage, start, add)
        return
    make = partial(_inside, site, stage, now.act, add.pieces)
    inside = site.once("inside", make, stage, now.act, site.cuts)
    yield Level(start + inside.items, inside.where)
    if now.act.phase == "backward" and stage.ends.is_first:
        yield from _rows_added(site, now, start, add)


def _inside(site: Site, stage: Stage, act: Act, pieces: Array) -> Level:
    """Return the highest level within a work, above the one at its start."""
    found = stage_runs(part_of(site, stage), act)
    sizes, counts = _sizes(site, found, pieces), counts_of(site, stage)
    behind = sums_behind(site.job, [site.family], [chips_of(site.job, site.device)])
    peak = follow(found.profile, found.runs, sizes, counts, behind)
    where = describe_run(found.runs, int(peak.run[0]))
    return Level(peak.level[:, 0], f"{where}, of {_name(stage)}")


def _name(stage: Stage) -> str:
    return {
        Ends(True, False): "the first stage",
        Ends(False, True): "the last stage",
    }.get(stage.ends, "a stage between")


def _rows_added(site: Site, now: Situation, start: Array, add: Piecewise) -> Iterator[Level]:
    """Yield the instant at which a CUDA kernel adds up the gradient of the embedding's rows.

    See ``embedding.py``: everything else of that backward is over.
    """
    job, tokens = site.job, family_tokens(site.job, site.family)
    hidden, vocab = job.model.hidden_size, -(-job.model.vocab_size // site.family.tp)
    taken = embedding_workspace(num_tokens=tokens, vocab_size=vocab, hidden_size=hidden)
    if site.device.kernels != "cuda" or not taken or job.adapter is not None:
        return
    element = computed_bytes(job.precision) if site.family.gathers else _gradient_bytes(site)
    again = not now.act.is_first or (site.family.gathers and job.precision in HALF)
    level = start - add.kept + add.made * now.act.is_first
    level = level + add.gathered * (not now.gathered[now.chunk])
    level = level + _row_of(_TRANSIENT, (tokens + again * vocab) * hidden * element)
    yield Level(level + _row_of(_WORKSPACE, taken), "backward of the embedding, of the first stage")


class _Reduced(NamedTuple):
    """Bytes of a group whose gradients become a shard.

    Attributes:
        whole: Parameters, which go.
        buffer: Of gradients; gone when the next group's comes.
        gradients: Which go.
        shard: Of them, which stays.
        beside: What lives as long as all that.
        aside: What comes and goes behind the gradients.
        is_parted: Whether it is of parted experts.
    """

    whole: float
    buffer: float
    gradients: float
    shard: float
    beside: float = 0.0
    aside: float = 0.0
    is_parted: bool = False


def _reduced(site: Site, held: StageParts, sizes: Array) -> Iterator[_Reduced]:
    """Yield the groups of a stage in the order in which they are reduced."""
    is_wide, element = site.job.precision in HALF, _gradient_bytes(site)
    for part, group in units_of(held.parts):
        own = sizes[part * NUM_PIECES : (part + 1) * NUM_PIECES].tolist()
        whole, buffer, shard = (own[piece] for piece in (group.whole, group.buffer, group.shard))
        if group is EXPERTS:
            gradients = own[group.held if is_wide else group.gradients]
            aside = own[Piece.EXPERTS_LAST] + own[Piece.EXPERTS_DIVIDED]
            beside = own[Piece.EXPERTS_KEPT]
            yield _Reduced(whole, buffer, gradients, shard, beside, aside, is_parted=True)
        else:
            trained = held.rest.trained if group is REST else held.blocks[part].trained
            gradients = float(element * sum(map(prod, trained)))
            yield _Reduced(whole, buffer, gradients, shard)


def _reducing(site: Site, stage: Stage, start: Array, add: Piecewise) -> Level:
    """Return the level as whole gradients become shards, what is in no block first.

    A group's parameters go, the buffer comes, the shard comes, then the gradients go; those of
    parted experts go before their shard comes. The result of the last forward is still bound.
    """
    held, sizes = shapes_of(site, stage), add.pieces[:, 0]
    change, more = 0.0, -math.inf
    for group in _reduced(site, held, sizes):
        change -= group.whole
        begun = change + group.beside + group.buffer
        change += group.shard - group.gradients
        ends = change + group.beside + group.buffer + group.aside
        more = max(more, begun + group.shard * (not group.is_parted), ends)
    is_bound = not stage.ends.is_last and site.strategy.pp_schedule in ONE_STAGE
    bound = is_bound * message_bytes(site)
    level = start + _row_of(_REDUCED, more) + _row_of(_TRANSIENT, bound)
    return Level(level, f"gradients are reduced, of {_name(stage)}")


# -- one device --


def device_memory(site: Site, place: int) -> StepMemory:
    """Return what a device of a pipeline holds, and its peak."""
    stages = stages_on(site, place)
    held, updates = device_states(site, stages)
    highest = _highest(site, place, stages)
    split = split_of(site.strategy)
    blas = site.once("libraries", partial(_blas, site, stages), stages, site.cuts)
    return StepMemory(
        states=held,
        updates=updates,
        blas=blas,
        items=np.rint(highest.items + _row_of(_TRANSIENT, batch_bytes(site))).astype(np.int64),
        run=f"{highest.where}, on device {place} of {site.strategy.pp}",
        drawn=site.once("drawn", partial(_largest_drawn, site, place), place, split),
        room=_room(site, stages),
    )


def _blas(site: Site, stages: tuple[Stage, ...]) -> int:
    """Return what matrix libraries keep for the thread of each phase of a device's stages.

    A profile of the job's own says which of them are made.
    """
    if not is_own(site.key):
        again = sum(stage.num_checkpointed for stage in stages)
        blas = blas_bytes(site.job, site.family._replace(num_blocks=again), site.device)
        return int(blas[0])
    phases: tuple[Phase, ...] = ("forward", "backward")
    acts = [Act(phase, is_gathered=False, is_first=True) for phase in phases]
    made = {
        (act.phase, found.profile.kinds[event].mark)
        for stage in stages
        for act in acts
        for found in (stage_runs(part_of(_of_stage(site, stage), stage), act),)
        for run in found.runs
        for event in found.profile.works[run.work].events
    }
    sizes = marked_bytes(site.job, site.family, site.device, load_profile(site.key))
    return sum(sizes[mark] for _, mark in made if mark.startswith("cuBLAS"))


def _largest_drawn(site: Site, place: int) -> int:
    return max(drawn_on(site, place), default=0)


def held_bytes(site: Site, stages: tuple[Stage, ...], held: States) -> float:
    """Return what a device holds in every later step, whatever micro-batches keep."""
    return float(held.loaded + held.optimizer_state + _room(site, stages) + batch_bytes(site))


def device_states(site: Site, stages: tuple[Stage, ...]) -> tuple[States, Update]:
    """Return what a device holds of its stages across phases, and what their update takes."""
    return site.once(
        "states", partial(_states, site, stages), *((s.ends, s.blocks) for s in stages)
    )


def _states(site: Site, stages: tuple[Stage, ...]) -> tuple[States, Update]:
    parts = [shapes_of(site, stage) for stage in stages]
    family, recipe, num_shards = site.family, trained_recipe(site.job), site.strategy.dp_shard
    groups, whole = updated_on(site, parts), not family.gathers
    updates = update_apart(site.job, updater_of(site.device, num_shards), groups)
    held = sum(each.num for group in groups for each in group)
    if whole:
        held = sum(each.num for part in parts for each in part.trained)
    frozen = (frozen_bytes_of(site.job, family, each, num_shards) for each in parts)
    states = States(
        frozen=sum(frozen),
        constants=0,
        trained=held * recipe.parameter,
        buckets=held * recipe.gradient * (family.is_spread and whole),
        gradients=held * recipe.gradient,
        optimizer_state=updates.kept,
    )
    return states, updates


def updated_on(site: Site, parts: Sequence[StageParts]) -> list[list[Updated]]:
    """List what a device updates of its stages (``updated_apart``)."""
    parameters = [each for part in parts for each, _ in part.parameters]
    trained = [each for part in parts for each in part.trained]
    return updated_apart(site.job, site.family, parameters, trained, site.strategy.dp_shard)


def batch_bytes(site: Site) -> int:
    """Return the bytes of a step's tokens and labels, which every device has."""
    num = num_micro_batches(site.job, site.strategy)
    return num * family_tokens(site.job, site.family) * _TOKEN_BYTES


def _room(site: Site, stages: tuple[Stage, ...]) -> int:
    """Return the bytes of room for messages: one of each micro-batch, each way in."""
    num = num_micro_batches(site.job, site.strategy)
    return round(sum(map(num_ways_in, stages)) * num * message_bytes(site))


def num_ways_in(stage: Stage) -> int:
    """Count the neighbours that send to a stage, or will get from it what they send back."""
    return (not stage.ends.is_first) + (not stage.ends.is_last)
