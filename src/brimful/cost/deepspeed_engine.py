"""What DeepSpeed's engine holds: flat pieces, a bucket, and a share of the gradients.

Model, loss and optimizer are ours, so that a micro-batch is that of one device but for its
gradients, which never stay: each goes into a bucket as it comes, or a flat copy of it is reduced.

- Parameters are one flat tensor, in 16 bits or in the recipe's type; of stage 3 a share of it, and
  whole those that are so small that they are never parted.
- An fp32 copy of a device's share is what is updated, in an fp32 recipe too.
- Stages 1 and 2 make the bucket as a backward begins, and a buffer for the gradients of every
  parameter that a device's share has a part of as the first is reduced: stage 1 when all gradients
  of a step's last micro-batch are there but those before it that went through the bucket, which
  goes afterwards; stage 2 in each micro-batch, beside those of the first.
- Stage 3 keeps both from the start. It gathers the parameters of a module before it runs, and so
  many ahead that in the end as many are whole as may be: a billion.
- What is offloaded leaves a buffer for the largest gradient to stages 1 and 2.
- At a step's end the share of the gradients is widened, for the norm to 8 bytes.

Source: ``runtime/zero/{stage_1_and_2,stage3,partitioned_param_coordinator}.py`` of DeepSpeed 0.19.8
as ``build.deepspeed.config`` configures it. Compared with its own code on the pretend GPU by
``tests/validation/test_deepspeed_engine.py``.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from brimful.cost.additions import is_block
from brimful.cost.deepspeed_gradients import (
    Reducing,
    all_reduced,
    counts_of,
    is_gradient,
    on_its_way,
)
from brimful.cost.deepspeed_pieces import Pieces, copies_of, pieces_of
from brimful.cost.family import family_dimensions, family_of
from brimful.cost.memory import (
    Step,
    StepMemory,
    blas_bytes,
    describe_run,
    follow_family,
    phase_peaks,
    profile_for,
)
from brimful.cost.profiles import EventKind
from brimful.cost.recipes import FP32_BYTES
from brimful.cost.sections import Event, Section, changed, ended, of_bytes
from brimful.cost.states import States
from brimful.cost.trained import constants_of
from brimful.cost.update import Update, settings_of, updater_of
from brimful.hardware.cluster import Device
from brimful.techniques.deepspeed_settings import GATHERS_ALL as PARTED
from brimful.techniques.optimizers import OPTIMIZERS, Updated, bytes_kept
from brimful.values.job import Job
from brimful.values.results import GATHERED, GRADIENTS, ITEM_NAMES, TRANSIENTS
from brimful.values.strategy import Strategy, num_micro_batches, world_size

_GRADIENT, _GATHERED = ITEM_NAMES.index(GRADIENTS), ITEM_NAMES.index(GATHERED)
_TRANSIENT = ITEM_NAMES.index(TRANSIENTS)
NORM_BYTES = 8
"""Of a number whose square is added up."""
_HOST_BYTES = 18
"""Of each parameter on the host: itself in 16 bits; master, moments and gradient in fp32."""
_HOST_BUFFERS = 1.5
"""By which DeepSpeed's estimate allows for buffers."""


def engine_memory(job: Job, strategy: Strategy, device: Device) -> StepMemory:
    """Return what a step by DeepSpeed's engine takes of the process that holds most.

    ``strategy``: how, with ``engine=deepspeed``.
    """
    return _fullest(job, strategy, device)[1]


def fullest_rank(job: Job, strategy: Strategy, device: Device) -> int:
    """Return which process that is; of those that hold as much one.

    ``job``: what is trained; it has a formula. ``strategy``: how, with ``engine=deepspeed``.
    """
    return _fullest(job, strategy, device)[0]


def _fullest(job: Job, strategy: Strategy, device: Device) -> tuple[int, StepMemory]:
    """Follow the processes whose share is of the most, whose is as it is made, and the last's."""
    ranks = [0]
    if strategy.zero != PARTED and strategy.offload == "none":
        every = [pieces_of(job, strategy, rank) for rank in range(world_size(strategy))]
        fullest = max(every, key=lambda each: each.touched)
        by_the_end = max(every, key=lambda each: each.touched - each.passed)
        ranks = [every.index(fullest), every.index(by_the_end), len(every) - 1]
    found = ((rank, _of_rank(job, strategy, device, rank)) for rank in dict.fromkeys(ranks))
    return max(found, key=lambda each: max(p.num_bytes for p in phase_peaks(each[1])))


def _of_rank(job: Job, strategy: Strategy, device: Device, rank: int) -> StepMemory:
    of_one, alone = alone_of(job, strategy)
    family = family_of(of_one, alone)
    profile = profile_for(of_one, alone.attention, device, family)
    pieces = pieces_of(job, strategy, rank)

    def alter(step: Step) -> Step:
        return changed(step, [lambda sections: as_engine(sections, pieces, job, strategy)])

    peak, runs = follow_family(of_one, profile, device, family, by_item=True, alter=alter)
    held, update = _held(job, strategy, pieces), _update(job, strategy, device, pieces)
    return StepMemory(
        states=held._replace(optimizer_state=update.kept),
        updates=update._replace(transient=max(0, update.transient - _gone_by_then(strategy, held))),
        blas=int(blas_bytes(of_one, family, device, profile)[0]),
        items=np.rint(peak.level[:, 0]).astype(np.int64),
        run=describe_run(runs, int(peak.run[0])),
        drawn=0,
    )


def _held(job: Job, strategy: Strategy, pieces: Pieces) -> States:
    """Return what is there as the fullest micro-batch of a step begins."""
    element, is_away = pieces.element, strategy.offload != "none"
    share, bucket = pieces.share * element, pieces.bucket * element
    is_later = num_micro_batches(job, strategy) > 1
    if strategy.zero == PARTED:
        parted = 0 if strategy.offload == "parameters" else share
        trained = parted + pieces.kept_whole * element
        gradients = bucket + share * (not is_away)
    else:
        trained = pieces.whole * element
        kept = pieces.whole if strategy.zero == 1 else pieces.touched * (not is_away)
        kept += pieces.in_buckets * (strategy.zero == 1)  # which has them from the first on
        gradients = kept * element * is_later + max(pieces.sizes) * element * is_away
    return States(
        frozen=0,
        constants=sum(constants_of(job)),
        trained=trained,
        buckets=gradients,
        gradients=0,
        optimizer_state=0,
    )


def _gone_by_then(strategy: Strategy, held: States) -> int:
    """Return what of gradients is gone by the update, which counts what it has beside it itself."""
    return 0 if strategy.zero == PARTED or strategy.offload != "none" else int(held.buckets)


def estimated_host_bytes(num_parameters: int, num_nodes: int) -> tuple[int, int]:
    """Return the bytes that a node's host has to have where stage 3 offloads parameters.

    Returns what the states take, and that with what DeepSpeed allows for buffers.

    Source: ``estimate_zero3_model_states_mem_needs`` of DeepSpeed's ``runtime/zero/stage3.py``.
    """
    least = _HOST_BYTES * num_parameters // num_nodes
    return least, int(_HOST_BUFFERS * least)


def missing_engine(job: Job, strategy: Strategy) -> str:
    """Say why a job that one device has a formula for has none by DeepSpeed; empty: it has.

    ``strategy``: how, with ``engine=deepspeed``.
    """
    if strategy.zero == PARTED and job.precision == "bf16-mixed":
        return (
            "precision=bf16-mixed with engine=deepspeed and zero=3 has no formula to predict from; "
            "brimful simulate --for deepspeed runs it, and precision=bf16-master is predicted"
        )
    return ""


def alone_of(job: Job, strategy: Strategy, num: int = 1) -> tuple[Job, Strategy]:
    """Return micro-batches of one device, and how they are run by our own engine.

    ``strategy``: how, with ``engine=deepspeed``. ``num``: how many micro-batches.
    """
    alone = replace(
        strategy, engine="torch", zero=0, dp_shard=1, dp_replicate=1, offload="none",
        accumulate="reduce-each",
    )  # fmt: skip
    return replace(job, global_batch=num * strategy.micro_batch), alone


def _update(job: Job, strategy: Strategy, device: Device, pieces: Pieces) -> Update:
    """Return what the share's update keeps and needs."""
    if strategy.offload != "none":
        copies = (2 * pieces.element + NORM_BYTES) * (strategy.zero != PARTED)
        return Update(0, max(pieces.sizes) * copies, "updated on the host")
    rule = OPTIMIZERS[job.optimizer]
    settings = settings_of(job, updater_of(device, world_size(strategy)))
    share, element = pieces.share, pieces.element
    flat = [Updated((share,))]
    kept = share * FP32_BYTES + bytes_kept(rule, flat, settings)
    most = max(moment.num_bytes for moment in rule.moments(flat, settings))
    at_once = min(share, pieces.settings.sub_group_size) if strategy.zero == PARTED else share
    wide = at_once * FP32_BYTES
    gradients = 0 if strategy.zero == PARTED else pieces.touched * element
    transient = max(
        wide + most * at_once // share,
        gradients + wide + at_once * element * (element < FP32_BYTES),
        gradients + pieces.largest * NORM_BYTES,
    )
    return Update(kept, transient, f"{rule.words}: {rule.keeps}, fp32 copies of a share")


def as_engine(
    sections: list[Section], pieces: Pieces, job: Job, strategy: Strategy
) -> list[Section]:
    """Return a micro-batch whose gradients go as they are reduced."""
    num_before = sum(section.run.phase == "forward" for section in sections)
    is_alone = num_micro_batches(job, strategy) == 1
    # Stage 1 reduces when all gradients are there, and beside the last backward where it overlaps.
    waits = strategy.zero == 1 and not pieces.settings.overlap_comm
    found = sections
    if not (waits and is_alone):
        copied = _TRANSIENT if strategy.zero != 1 or is_alone else None
        found = _all_reduced(sections, pieces, job, strategy, copied)
    if strategy.zero == PARTED:
        return list(_gathered(found, pieces))
    if waits:
        shares = _shares(pieces, strategy)
        passed = of_bytes(pieces.passed * pieces.element, _GRADIENT)
        last = [Event(ended(passed)), *shares]
        gone = [Event(ended(each.kind)) for each in shares]
        found = _with_bucket(found, pieces, last, comes=is_alone, goes=is_alone)
        return [*found[:-1], _with(found[-1], behind=[*gone, Event(passed)])]
    if strategy.zero == 1 and not is_alone:
        return found
    return _with_share(found, pieces, strategy, num_before, stays=False)


def as_requested(  # noqa: PLR0913 - what a micro-batch is made of
    sections: list[Section],
    pieces: Pieces,
    job: Job,
    strategy: Strategy,
    *,
    is_first: bool,
    is_last: bool,
) -> list[Section]:
    """Return a micro-batch as the allocator sees it, where memory is given back late.

    Stage 1 has all gradients when backward ends, and behind the last micro-batch the share
    (``share_kind``), stage 2 the share of a step's first micro-batch until the update; stage 3
    lends gradients to another stream.
    """
    num_before = sum(section.run.phase == "forward" for section in sections)
    if strategy.zero == 1:
        copies = (of_bytes(num * pieces.element, _TRANSIENT) for num in copies_of(pieces))
        last = [event for copy in copies for event in (Event(copy), Event(ended(copy)))]
        last += [Event(share_kind(pieces))] * (strategy.offload == "none")
        return _with_bucket(sections, pieces, last if is_last else (), comes=is_first, goes=is_last)
    apart = None if strategy.zero == PARTED else _GATHERED  # on the one stream of stage 2's own
    copied = apart if pieces.settings.overlap_comm else _TRANSIENT
    found = _all_reduced(sections, pieces, job, strategy, copied)
    if strategy.zero == PARTED:
        return list(map(on_its_way, found))
    return _with_share(found, pieces, strategy, num_before, stays=is_first)


def _all_reduced(
    sections: list[Section],
    pieces: Pieces,
    job: Job,
    strategy: Strategy,
    copied: int | None = _TRANSIENT,
) -> list[Section]:
    """Return a micro-batch whose gradients are reduced.

    ``copied``: the class of their flat copies; None: what they are reduced out of is counted apart.
    """
    of_one, alone = alone_of(job, strategy)
    family = family_of(of_one, alone)
    how = Reducing(
        dims=family_dimensions(of_one, family),
        counts=counts_of(of_one, family, sections),
        bucket_bytes=pieces.bucket * pieces.element,
        copied=copied,
        copies_one=strategy.zero != PARTED,
        is_tied=job.model.tied_embeddings,
    )
    return all_reduced(sections, how)


def _shares(pieces: Pieces, strategy: Strategy) -> list[Event]:
    share = of_bytes(pieces.touched * pieces.element, _GRADIENT)
    return [Event(share)] * (strategy.offload == "none")


def share_kind(pieces: Pieces) -> EventKind:
    """Return the kind of stage 1's share of the gradients where these are there beside it."""
    return of_bytes(pieces.touched * pieces.element, _TRANSIENT)


def _with_bucket(
    sections: list[Section],
    pieces: Pieces,
    last: Sequence[Event] = (),
    *,
    comes: bool = True,
    goes: bool = True,
) -> list[Section]:
    """Let the bucket come with the first gradients, or two that take turns, and go with the last.

    ``last``: what comes and goes before that, as ``independent_gradient_partition_epilogue`` calls
    ``_release_ipg_buffers`` behind what it reduces. ``comes``, ``goes``: stage 1 reduces behind a
    step's last micro-batch, and has the bucket from the first one's gradients on.
    """
    found = [*sections]
    bucket = Event(of_bytes(pieces.in_buckets * pieces.element, _TRANSIENT))
    if comes:
        place = next(n for n, each in enumerate(found) if any(map(is_gradient, each.events)))
        found[place] = _with(found[place], behind=[bucket])
    found[-1] = _with(found[-1], behind=[*last, *[Event(ended(bucket.kind))] * goes])
    return found


def _with_share(
    sections: list[Section], pieces: Pieces, strategy: Strategy, num_before: int, *, stays: bool
) -> list[Section]:
    """Let a buffer for a share come where it is reached, and go at the end where it does not stay.

    ``num_before``: runs of the forward.
    """
    found, shares = _with_bucket(sections, pieces), _shares(pieces, strategy)
    blocks = [n for n, s in enumerate(found) if n >= num_before and is_block(s.run)]
    place = blocks[0] if "first" in pieces.reached else blocks[-1]
    is_before = pieces.reached in {"first", "before the last"}
    around = (shares, []) if is_before else ([], shares)
    found[place] = _with(found[place], *around)
    if not stays:
        found[-1] = _with(found[-1], behind=[Event(ended(each.kind)) for each in shares])
    return found


def _with(section: Section, before: Sequence[Event] = (), behind: Sequence[Event] = ()) -> Section:
    return section._replace(events=(*before, *section.events, *behind))


def _gathered(sections: list[Section], pieces: Pieces) -> Iterator[Section]:
    """Yield the runs with what is whole while they run."""
    # How many numbers are whole while the model runs. Each module has those behind it fetched, a
    # bucket of them at least, so that what is whole grows to all that may be, or to one at a time.
    most = min(sum(pieces.sizes) - pieces.kept_whole, pieces.settings.stage3_max_live_parameters)
    for section in sections:
        one = pieces.of_block if is_block(section.run) else max(pieces.sizes)
        is_last = section is sections[-1]  # behind which nothing is fetched
        num = (pieces.sizes[0] if is_last else max(most, one)) * pieces.element
        come, go = (Event(of_bytes(sign * num, _GATHERED)) for sign in (1, -1))
        yield section._replace(events=(come, *section.events, go))
