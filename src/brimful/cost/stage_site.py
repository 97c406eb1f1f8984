"""The stages of a pipeline: which blocks and which ends each has, and what they hand one another.

Owns no levels: those are ``stage_memory.py``'s.
"""

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

from brimful.cost.family import Family, family_dimensions, family_of, runs_one
from brimful.cost.own_programs import chosen_program
from brimful.cost.profiles import Term, is_own
from brimful.cost.programs import kernels_of, recomputing_all
from brimful.cost.sequences import Blocks
from brimful.cost.shards import computed_bytes, largest_share
from brimful.cost.stage_first import Ends
from brimful.cost.stage_parts import StageParts, drawn_bytes, parts_of_blocks, stage_parts
from brimful.cost.trained import frozen_element, untied_job
from brimful.cost.trajectory import evaluate_terms
from brimful.hardware.cluster import Device
from brimful.models.spec import ModelSpec
from brimful.models.traced import find_built
from brimful.techniques.parallel.stages import blocks_of_stages, device_of_stage, stages_of_device
from brimful.values.job import Job
from brimful.values.strategy import Strategy, num_checkpointed, split_of, stage_rank

Known = TypeVar("Known")
_UNTIED = ("untied job",)


class Stage(NamedTuple):
    """One piece of the model.

    Attributes:
        ends: Which of the model's it has.
        num_blocks: How many.
        num_checkpointed: Of them.
        blocks: What they are.
    """

    ends: Ends
    num_blocks: int
    num_checkpointed: int
    blocks: Blocks


class Site(NamedTuple):
    """What is trained, how, and on what.

    Attributes:
        job: What is trained; its head is a weight of its own.
        strategy: How.
        device: On what.
        family: Of the strategy.
        key: Of the profile.
        is_tied: Whether the head is the embedding where there is no pipeline.
        known: What has been found out of stages, by what it hangs on.
    """

    job: Job
    strategy: Strategy
    device: Device
    family: Family
    key: str
    is_tied: bool
    known: dict[tuple[object, ...], Any]

    def once(self, name: str, make: Callable[[], Known], *key: Hashable) -> Known:
        """Return what is known under a name, or make it: for one job on one kind of device.

        ``key``: what it hangs on beside the program and how it is spread.
        """
        family, shards = self.family, self.strategy.dp_shard
        spread = (family.zero, family.tp, family.ep, family.num_data_parallel, shards)
        every = (name, self.key, *spread, *key)
        if every not in self.known:
            self.known[every] = make()
        found: Known = self.known[every]
        return found

    @property
    def cuts(self) -> tuple[int, int]:
        """How batch and loss are cut."""
        return self.family.micro_batch, self.family.loss_chunks


def site_of(
    job: Job,
    strategy: Strategy,
    device: Device,
    known: dict[tuple[object, ...], Any] | None = None,
) -> Site:
    """Collect what predictions of a pipeline's devices share.

    ``known``: of other strategies of the same job on the same device.
    """
    family, known = family_of(job, strategy), {} if known is None else known
    if _UNTIED not in known:
        known[_UNTIED] = untied_job(job)
    untied = known[_UNTIED]
    program = chosen_program(
        untied, strategy.attention, kernels_of(device), family.recompute,
        gathers=family.gathers, tp=family.tp, ep=family.ep, is_one=runs_one(job, family),
    )  # fmt: skip
    tied = job.model.tied_embeddings
    return Site(untied, strategy, device, family, program.key, tied, known)


def stages_on(site: Site, place: int) -> tuple[Stage, ...]:
    """List the stages of one device of the row.

    Of K checkpointed blocks each device has the first K of its own (``build/checkpointing.py``).

    ``place``: of the device, counted from 0.
    """
    return stages_of_row(site)[place]


def stages_in_order(site: Site) -> list[Stage]:
    """List the stages of all devices, in the order of the model."""
    split, left = split_of(site.strategy), [list(stages) for stages in stages_of_row(site)]
    return [left[device_of_stage(split, index)].pop(0) for index in range(split.num_stages)]


def stages_of_row(site: Site) -> tuple[tuple[Stage, ...], ...]:
    """List the stages of every device of the row."""
    split, num_layers = split_of(site.strategy), site.job.model.num_layers
    again = num_checkpointed(site.strategy, num_layers=num_layers)
    return site.once("row", partial(stages_of, site.job, site.strategy), split, again)


def stages_of(job: Job, strategy: Strategy) -> tuple[tuple[Stage, ...], ...]:
    """List the stages of every device of a row."""
    split = split_of(strategy)
    again = num_checkpointed(strategy, num_layers=job.model.num_layers)
    ranges, blocks = blocks_of_stages(job.model, split), blocks_in(job.model)
    devices = []
    for place in range(split.pp):
        left, found = again, []
        for index in stages_of_device(split, place):
            ends = Ends(index == 0, index == split.num_stages - 1)
            first, num = ranges[index].start, len(ranges[index])
            own = Blocks(*(each[first : first + num] for each in blocks))
            found.append(Stage(ends, num, min(left, num), own))
            left -= found[-1].num_checkpointed
        devices.append(tuple(found))
    return tuple(devices)


def blocks_in(model: ModelSpec) -> Blocks:
    """Return what the blocks of a model are; told by their parameters until it was built here."""
    built, parts = find_built(model), parts_of_blocks(model)
    return Blocks(parts if built is None else built.kinds, parts)


def classes_of(site: Site) -> dict[tuple[Stage, ...], int]:
    """Return a device for every kind of device of the row: of those alike the first is fullest."""
    found: dict[tuple[Stage, ...], int] = {}
    for place, stages in enumerate(stages_of_row(site)):
        found.setdefault(stages, place)
    return found


def key_of(site: Site, stage: Stage) -> str:
    """Return the key of a stage's profile: what checkpoints nothing does so in no way."""
    return site.key if stage.num_checkpointed else recomputing_all(site.key)


def message_bytes(site: Site) -> float:
    """Return the bytes of what one stage hands the next of one micro-batch."""
    return evaluate_terms((message_of(site),), family_dimensions(site.job, site.family))


def message_of(site: Site) -> Term:
    """Return the size of that as a formula: beside tp each device has its tokens."""
    if is_own(site.key):
        return Term("BS", float(stream_element(site) * site.job.model.hidden_size))
    return Term("nH" if site.family.tp > 1 else "BSH", float(stream_element(site)))


def stream_element(site: Site) -> int:
    """Return the bytes of a number of the residual stream.

    That is of the type in which the embedding is held, or is gathered (``build.stream``).
    """
    held = frozen_element(site.job)
    return min(held, computed_bytes(site.job.precision)) if site.family.gathers else held


def shapes_of(site: Site, stage: Stage) -> StageParts:
    """Return the parameters of a stage."""
    ends, parts = stage.ends, stage.blocks.parts
    make = partial(stage_parts, site.job, parts, ends, site.family.tp, ep=site.family.ep)
    return site.once("shapes", make, ends, parts)


def fullest_ranks(job: Job, strategy: Strategy) -> list[int]:
    """List a process of every place of a row that holds as much as any there.

    That is the first, but for ZeRO-1, whose shares of whole parameters are uneven.
    """
    firsts = [stage_rank(strategy, place) for place in range(strategy.pp)]
    if strategy.zero != 1:
        return firsts
    untied = untied_job(job)
    found = []
    for first, stages in zip(firsts, stages_of(untied, strategy), strict=True):
        parts = [stage_parts(untied, each.blocks.parts, each.ends, strategy.tp) for each in stages]
        trained = [each for part in parts for each in part.trained]
        found.append(first + largest_share(trained, strategy.dp_shard).rank * strategy.tp)
    return found


def drawn_on(site: Site, place: int) -> Iterator[int]:
    """Yield the bytes of whole weights that a device draws in turn and drops.

    Those are others', or all if they are sharded or cut; what is tied to a weight that is here is
    that weight.
    """
    whole = site._replace(family=site.family._replace(tp=1))
    draws_all = site.family.gathers or site.family.tp > 1
    has_end = any(any(stage.ends) for stage in stages_on(site, place))
    for index, stage in enumerate(stages_in_order(site)):
        if draws_all:
            yield from drawn_bytes(site.job, shapes_of(whole, stage))
        elif device_of_stage(split_of(site.strategy), index) != place:
            is_here = site.is_tied and has_end and any(stage.ends)
            one = stage._replace(ends=Ends(is_first=False, is_last=False)) if is_here else stage
            yield from drawn_bytes(site.job, shapes_of(whole, one))
