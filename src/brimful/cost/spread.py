"""What data parallelism and ZeRO add to one micro-batch: buffers, and when gradients shrink.

A profile is of one device. Spread over several the same operations run, on parameters that were
gathered before them and with gradients that are reduced after them. So a profile's runs are given
more events: before a block its parameters come, behind it its gradients go. How large those are is
closed form (``shards.py``), for every number of devices at once.

Source: ``torch/distributed/fsdp/_fully_shard`` (``_fsdp_param_group.py``, ``_fsdp_collectives.py``)
and ``torch/csrc/distributed/c10d/reducer.cpp``; the simulation runs both.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from brimful.cost.additions import (
    COME,
    GO,
    NUM_PIECES,
    Additions,
    Piece,
    Signed,
    Way,
    is_block,
    of_part,
    told_apart,
)
from brimful.cost.expert_shards import parted_parts
from brimful.cost.family import Family, family_micro_batches
from brimful.cost.flat_units import flat_additions
from brimful.cost.fsdp_units import sharded_additions
from brimful.cost.profiles import EventKind, Profile, Run, Term, Variant, Work
from brimful.cost.programs import HALF
from brimful.cost.recipes import FP32_BYTES
from brimful.cost.trained import trained_recipe
from brimful.files.remembered import once_for_each
from brimful.models.config import layout_of
from brimful.values.job import Job
from brimful.values.results import (
    GATHERED,
    GRADIENTS,
    ITEM_NAMES,
    LOGITS,
    REDUCED,
    TRANSIENTS,
    WORKSPACES,
)

if TYPE_CHECKING:
    from brimful.values.strategy import Accumulate, Zero

Array = NDArray[np.float64]
_ITEMS = {
    **dict.fromkeys((Piece.BLOCK_CAST, Piece.BLOCK_GATHERED, Piece.BLOCK), GATHERED),
    **dict.fromkeys((Piece.REST_CAST, Piece.REST_GATHERED, Piece.REST), GATHERED),
    **dict.fromkeys((Piece.BLOCK_BUFFER, Piece.REST_BUFFER), REDUCED),
    **dict.fromkeys((Piece.BLOCK_FLAT, Piece.REST_FLAT), REDUCED),
    **dict.fromkeys((Piece.BLOCK_ADDED, Piece.REST_ADDED), REDUCED),
    **dict.fromkeys(
        (Piece.EXPERTS_CAST, Piece.EXPERTS_GATHERED, Piece.EXPERTS, Piece.EXPERTS_TURNED), GATHERED
    ),
    **dict.fromkeys((Piece.EXPERTS_BUFFER, Piece.EXPERTS_DIVIDED), REDUCED),
    **dict.fromkeys((Piece.BLOCK_COPY, Piece.REST_COPY), WORKSPACES),
    **dict.fromkeys((Piece.BLOCK_BUFFER_COPY, Piece.REST_BUFFER_COPY), WORKSPACES),
    Piece.ROW_SUMS: WORKSPACES,
    Piece.ROW_GRADIENT: TRANSIENTS,
}
"""Classes of what is added; all else is gradients."""


@once_for_each
def spread_runs(
    profile: Profile, runs: tuple[Run, ...], way: Way
) -> tuple[Profile, tuple[Run, ...]]:
    """Return a profile with the added events, and the runs that refer to it.

    The last ``2 * NUM_PIECES`` kinds are the pieces coming, then the pieces going; their sizes are
    not formulas of the profile (``with_pieces``).
    """
    whole, num_parts = way.zero in {0, 1}, num_parts_of(runs)
    own = _passing(profile, runs) if whole else profile.kinds
    kinds = _gathered_kinds(own, num_parts)
    num = len(profile.kinds)
    if whole:
        works, each = list(_freed_at_once(profile, runs, way)), runs
        which: Sequence[int] = range(len(runs))
    else:
        each, which = tuple(run for run, _ in told_apart(runs).each), told_apart(runs).numbers
        added = _additions(profile.key, runs, way)
        works = [
            _worked(
                profile.works[run.work],
                2 * num,
                *_moved_inside(profile, run, more, way),
                num_parts,
            )
            for run, more in zip(each, added, strict=True)
        ]
    numbers: dict[int, int] = {}
    places = [numbers.setdefault(id(work), len(numbers)) for work in works]
    renamed = [
        Run(run.phase, run.group, run.role, place, run.part)
        for run, place in zip(each, places, strict=True)
    ]
    different = {id(work): work for work in works}
    made = replaced(profile, kinds, tuple(different.values()), num_parts)
    return made, tuple(map(renamed.__getitem__, which))


def num_parts_of(runs: tuple[Run, ...]) -> int:
    """Count the kinds of blocks that hold other parameters."""
    return 1 + max(run.part for run in runs)


def _additions(key: str, runs: tuple[Run, ...], way: Way) -> list[Additions]:
    """List what sharding adds to each run that differs, by NCCL or, on a CPU, by gloo."""
    added = (flat_additions if way.is_flat else sharded_additions)(runs, way)
    if "cpu" not in key.split("."):
        return added
    return list(map(_with_copies, added))


@cache
def _with_copies(more: Additions) -> Additions:
    return Additions(with_copies(more.before), with_copies(more.behind))


_COPIED: dict[tuple[Signed, Signed], Piece] = {
    ((COME, Piece.BLOCK_CAST), (COME, Piece.BLOCK_GATHERED)): Piece.BLOCK_COPY,
    ((COME, Piece.REST_CAST), (COME, Piece.REST_GATHERED)): Piece.REST_COPY,
    ((COME, Piece.BLOCK_CAST), (COME, Piece.BLOCK)): Piece.BLOCK_COPY,
    ((COME, Piece.REST_CAST), (COME, Piece.REST)): Piece.REST_COPY,
}
_COPIED_BUFFER: dict[Signed, Piece] = {
    (COME, Piece.BLOCK_SHARD): Piece.BLOCK_BUFFER_COPY,
    (COME, Piece.REST_SHARD): Piece.REST_BUFFER_COPY,
}


def with_copies(events: tuple[Signed, ...]) -> tuple[Signed, ...]:
    """Let what gloo takes for itself come and go: see ``pretend/cpu_collectives.py``.

    While all shards come into their buffer, a second one; while a buffer of gradients is reduced
    to a shard, a copy of it.
    """
    found: list[Signed] = []
    for place, event in enumerate(events):
        part = event[1] // NUM_PIECES
        before, now = (of_part(-part, *events[i : i + 1]) for i in (max(0, place - 1), place))
        copy = _COPIED_BUFFER.get(now[0], _COPIED.get((before[0], now[0])))
        found.append(event)
        if copy is not None:
            found += of_part(part, (COME, copy), (GO, copy))
    return tuple(found)


_Kinds = tuple[EventKind, ...]


@once_for_each
def _gathered_kinds(own: _Kinds, num_parts: int) -> _Kinds:
    """Return kinds with their opposites and those of all pieces, as one value."""
    negated = [EventKind(negated_terms(kind.terms), kind.item, kind.origin) for kind in own]
    return (*own, *negated, *piece_kinds(num_parts))


def _passing(profile: Profile, runs: tuple[Run, ...]) -> tuple[EventKind, ...]:
    """Return the kinds of a profile with gradients that are none: buckets hold them.

    What no block makes, and the embedding does not, is the loss's: the gradient of the head.
    """
    gradient = ITEM_NAMES.index(GRADIENTS)
    made = {run.work for run in runs if is_block(run) or run == runs[-1]}
    events = {event for number in made for event in profile.works[number].events}
    elsewhere = frozenset(e for e in events if profile.kinds[e].item == gradient)
    return _with_passing(profile.kinds, elsewhere)


@once_for_each
def _with_passing(own: _Kinds, elsewhere: frozenset[int]) -> _Kinds:
    """Return kinds of which gradients are none, as one value; some are made by what is no loss."""
    gradient, transient, logits = map(ITEM_NAMES.index, (GRADIENTS, TRANSIENTS, LOGITS))
    return tuple(
        EventKind(kind.terms, transient if place in elsewhere else logits, kind.origin)
        if kind.item == gradient
        else kind
        for place, kind in enumerate(own)
    )


def replaced(
    profile: Profile, kinds: tuple[EventKind, ...], works: tuple[Work, ...], num_parts: int = 1
) -> Profile:
    """Return a profile with other kinds and works, with pieces, and without variants."""
    return replace(profile, kinds=kinds, works=works, variants={}, of_one={}, num_parts=num_parts)


def negated_terms(terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """Return a formula with all signs turned."""
    return tuple(Term(term.factors, -term.coefficient) for term in terms)


def piece_kinds(num_parts: int = 1) -> Iterator[EventKind]:
    """Yield the kinds of all pieces coming, then going; their sizes are no formulas.

    ``num_parts``: kinds of blocks that hold other parameters; each has pieces of its own.
    """
    for _sign in (COME, GO):
        for _part in range(num_parts):
            for piece in Piece:
                yield EventKind((), ITEM_NAMES.index(_ITEMS.get(piece, GRADIENTS)), "")


def signed_pieces(base: int, signed: tuple[Signed, ...], num_parts: int = 1) -> tuple[int, ...]:
    """Return the events of pieces, whose kinds begin at ``base``."""
    return tuple(base + piece + num_parts * NUM_PIECES * (sign < 0) for sign, piece in signed)


class _Inside(NamedTuple):
    """Pieces that come or go within a run, behind so many of its events."""

    place: int
    signed: tuple[Signed, ...]


def _moved_inside(
    profile: Profile, run: Run, more: Additions, way: Way
) -> tuple[Additions, tuple[_Inside, ...]]:
    """Move into a run of backward what units inside of its block do at other times than the block.

    What the next block needs is gathered where backward comes to the first of these units, which is
    behind the gradient of what follows it in the block. What the block before was reduced from goes
    where the last of them is reduced: behind the gradient of what comes into that unit, which is
    made after that of its parameters.
    """
    if not (way.inner and run.phase == "backward" and is_block(run)):
        return more, ()
    kinds = profile.kinds
    events = profile.works[run.work].events
    grows = [place for place, event in enumerate(events) if _grows(kinds[event])]
    own = [at for at, place in enumerate(grows) if _is_inner(kinds[events[place]], way)]
    if not own:
        return more, ()
    gradients = [place for place in grows if _is_gradient(kinds[events[place]])]
    place = max((place + 1 for place in gradients if place < grows[own[-1]]), default=0)
    start = max((at + 1 for at, each in enumerate(more.before) if _is_copied(each)), default=0)
    inside = [_Inside(place, more.before[start:])] if start else []
    before = more.before[:start] if start else more.before
    buffers = [place for place, signed in enumerate(more.behind) if _is_buffer(signed)]
    comes = next((place for place in buffers if more.behind[place][0] == COME), 0)
    early = [place for place in buffers if place < comes]
    behind = tuple(each for place, each in enumerate(more.behind) if place not in early)
    place = grows[min(own[0] + 1, len(grows) - 1)] + 1
    inside += [_Inside(place, tuple(more.behind[at] for at in early))] if early else []
    return Additions(before, behind), tuple(sorted(inside))


def _is_gradient(kind: EventKind) -> bool:
    return kind.item == ITEM_NAMES.index(GRADIENTS)


def _is_inner(kind: EventKind, way: Way) -> bool:
    return _is_gradient(kind) and [*kind.terms] in [[Term("", float(size))] for size in way.inner]


def _is_buffer(signed: Signed) -> bool:
    return signed[1] % NUM_PIECES in {Piece.BLOCK_BUFFER, Piece.EXPERTS_BUFFER}


def _is_copied(signed: Signed) -> bool:
    """Whether it is the end of what a block's own parameters come by."""
    gathered = {Piece.BLOCK_GATHERED, Piece.EXPERTS_GATHERED}
    return signed[0] == GO and signed[1] % NUM_PIECES in gathered


@once_for_each
def _worked(
    work: Work, base: int, more: Additions, inside: tuple[_Inside, ...], num_parts: int
) -> Work:
    events = list(signed_pieces(base, more.before, num_parts))
    start = 0
    for place, signed in inside:
        events += (*work.events[start:place], *signed_pieces(base, signed, num_parts))
        start = place
    events += (*work.events[start:], *signed_pieces(base, more.behind, num_parts))
    return with_events(work, tuple(events))


@once_for_each
def with_events(work: Work, events: tuple[int, ...]) -> Work:
    """Return a work with other events."""
    return replace(work, events=events)


def _freed_at_once(profile: Profile, runs: tuple[Run, ...], way: Way) -> Iterator[Work]:
    """Yield what DDP makes of each run: gradients are copied into the buckets and dropped.

    Those of a block at once; those that several parts add to, when the last part has: the head's
    where it is the embedding, told by its size where rows of embeddings are marked.
    """
    num, waiting, known = len(profile.kinds), list[int](), dict[int, Work]()
    gradient = ITEM_NAMES.index(GRADIENTS)
    last = len(runs) - 1
    is_chunked = any(run.group == "chunk" for run in runs)
    looked_up = _embeddings(profile, runs)
    for index, run in enumerate(runs):
        work, events = profile.works[run.work], list[int]()
        if is_block(run) and not way.tied:
            events += waiting
            waiting = []
        is_alone = is_block(run) and not events
        if is_alone and run.work in known and index != last:
            yield known[run.work]
            continue
        for event in work.events:
            events.append(event)
            if profile.kinds[event].item == gradient and _grows(profile.kinds[event]):
                is_added = way.tied and (
                    looked_up is None or profile.kinds[event].terms in looked_up
                )
                waits = is_added or (is_chunked and index != last)
                (waiting if waits and not is_block(run) else events).append(num + event)
        made = with_events(work, (*events, *(waiting if index == last else ())))
        if is_alone:
            known[run.work] = made
        yield made


def _embeddings(profile: Profile, runs: tuple[Run, ...]) -> frozenset[tuple[Term, ...]] | None:
    """Return the sizes of gradients of embeddings that a second gradient is as large as.

    None: no rows are marked, so that nobody knows.
    """
    last = [profile.kinds[event] for event in profile.works[runs[-1].work].events]
    marked = {one.terms for one, other in pairwise(last) if other.mark == "embedding"}
    outside = [run.work for run in runs if run.phase == "backward" and not is_block(run)]
    events = (profile.kinds[event] for work in outside for event in profile.works[work].events)
    times = Counter(kind.terms for kind in events if _grows(kind))
    return frozenset(terms for terms in marked if times[terms] > 1) if marked else None


def _grows(kind: EventKind) -> bool:
    return sum(term.coefficient for term in kind.terms) > 0


def has_pieces(profile: Profile) -> bool:
    """Whether a profile has pieces among its kinds."""
    return not profile.variants


def num_pieces(profile: Profile) -> int:
    """Count the pieces among a profile's kinds, which are there twice: coming, and going."""
    return profile.num_parts * NUM_PIECES


def with_pieces(sizes: Array, pieces: Array) -> Array:
    """Put the bytes of pieces where the kinds of a spread profile expect them.

    ``sizes``: [kinds, 1], 0 for the pieces. ``pieces``: [pieces, strategies]. Returns [kinds,
    strategies].
    """
    num = len(sizes) - 2 * len(pieces)
    own = np.broadcast_to(sizes[:num], (num, pieces.shape[1]))
    return np.concatenate([own, pieces, -pieces])


def holds_whole(job: Job, family: Family) -> bool:
    """Whether whole gradients are held beside DDP's buckets."""
    is_whole = family.is_spread and not family.gathers
    return is_whole and family.accumulate == "hold" and family_micro_batches(job, family) > 1


@once_for_each
def _inner_gradients(job: Job) -> frozenset[int]:
    """Return the bytes of gradients of what a class keeps in fp32 inside of blocks that are not."""
    if job.adapter is not None or trained_recipe(job).parameter == FP32_BYTES:
        return frozenset()
    every = (p for run in layout_of(job.model).blocks for p in run.parameters)
    return frozenset(FP32_BYTES * p.num_elements for p in every if p.wide)


def spread_step(
    job: Job, profile: Profile, variant: Variant, family: Family
) -> list[tuple[Profile, tuple[Run, ...]]]:
    """Return what micro-batches that differ run on each of many devices."""
    num = family_micro_batches(job, family)
    if holds_whole(job, family):
        return [(profile, variant.first), (profile, variant.later)]
    widens, tied = job.precision in HALF, job.model.tied_embeddings
    zero: Zero = family.zero if family.gathers else 0
    accumulate: Accumulate = family.accumulate if family.gathers else "reduce-each"
    fresh = family.gathers and (widens or accumulate == "reduce-each" or family.is_flat)
    leaves = family.away.optimizer
    # the first, those between where they differ, the last; what leaves each time leaves all alike
    most = 3 if accumulate == "hold" else 1 if leaves else 2
    places = range(min(num, most))
    way = Way(
        zero=zero,
        accumulate=accumulate,
        is_first=False,
        is_last=False,
        widens=widens,
        tied=tied,
        parted=parted_parts(job, family),
        adapts=job.adapter is not None,
        leaves=leaves,
        is_flat=family.is_flat,
        inner=_inner_gradients(job) if family.gathers and not family.is_flat else frozenset(),
    )
    return [
        spread_runs(
            profile,
            variant.first if fresh or not place else variant.later,
            way._replace(is_first=not place, is_last=place == places[-1]),
        )
        for place in places
    ]
