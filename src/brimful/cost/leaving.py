"""Gradients that leave for the host as they are whole: what that makes of a profile's runs.

The operations are a profile's own. A gradient is copied to the host when it is whole, and goes when
two later ones are on their way; the last ones go when backward ends. A weight that several parts of
the loss add to, or that is the embedding too, is whole when the last of them has.

Source: ``build/offload/gradients.py``, whose ``NUM_ON_THE_WAY`` a test compares.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from msgspec.structs import replace

from brimful.cost.additions import is_block
from brimful.cost.brought import (
    NUM_ON_THE_WAY,
    OLDEST,
    Brought,
    Event,
    Gradients,
    block_gradients,
    brought,
    copy_kinds,
    gone_copies,
    gradients_of,
    is_of_head,
    sign,
    with_copies,
)
from brimful.cost.family import Family, family_dimensions, family_micro_batches
from brimful.cost.profiles import Dimensions, EventKind, Profile, Run, Term, Variant
from brimful.cost.spread import negated_terms, with_events
from brimful.cost.trajectory import evaluate_terms
from brimful.files.remembered import once_for_each
from brimful.values.job import Job

_Terms = tuple[Term, ...]


class Leaving(NamedTuple):
    """A micro-batch whose gradients leave.

    Attributes:
        profile: With kinds of gradients that go.
        runs: Of it.
        last: Kinds of the gradients that are there when the last one is computed, itself among
            them: that is where the rows of the embedding are added up.
    """

    profile: Profile
    runs: tuple[Run, ...]
    last: tuple[EventKind, ...]


def holds_gradients(job: Job, family: Family) -> bool:
    """Whether gradients stay on the device until the last of several micro-batches."""
    return family.accumulate == "hold" and family_micro_batches(job, family) > 1


def leaving_steps(
    job: Job, profile: Profile, variant: Variant, family: Family
) -> list[tuple[Profile, tuple[Run, ...]]]:
    """Return what micro-batches that differ run where gradients leave.

    Each makes gradients anew, and the host adds them up; or all are held until the last one.
    """
    tied = job.model.tied_embeddings
    if not holds_gradients(job, family):
        gradients = away_gradients(job, profile, variant, family)
        made = _leave(profile, variant.first, variant.first, tied, gradients)
        return [(made.profile, made.runs)]
    made = _leave(profile, variant.later, variant.first, tied, ())
    num_held = min(2, family_micro_batches(job, family) - 1)
    held = [(profile, variant.first), (profile, variant.later)][:num_held]
    return [*held, (made.profile, made.runs)]


def away_gradients(job: Job, profile: Profile, variant: Variant, family: Family) -> Gradients:
    """Return the gradients of blocks whose parameters are on the host; none: of no block."""
    if not family.away.parameters or family.away.frozen:
        return ()
    return block_gradients(job, profile, variant.first, family_dimensions(job, family))


def later_runs(variant: Variant, family: Family) -> tuple[Run, ...]:
    """Return what a later micro-batch computes: the host adds up what has left."""
    return variant.first if family.sends_each else variant.later


def last_bytes(
    profile: Profile, variant: Variant, dims: Dimensions, *, tied: bool, gradients: Gradients
) -> Any:
    """Return the bytes of what goes later and is there when the last gradient is computed.

    ``variant``: what a micro-batch runs where nothing leaves. ``dims``: sizes; arrays, where
    strategies differ. ``tied``: whether the head is the embedding.
    """
    last = _leave(profile, variant.first, variant.first, tied, gradients).last
    total = 0.0
    for kind in last:
        total = total + evaluate_terms(kind.terms, dims)
    return total


@once_for_each
def _leave(
    profile: Profile,
    runs: tuple[Run, ...],
    first: tuple[Run, ...],
    tied: bool,  # noqa: FBT001
    gradients: Gradients,
) -> Leaving:
    """Let the gradients of a micro-batch leave.

    ``first``: those of a micro-batch that makes gradients anew; ``runs`` are these, or add to them.
    ``tied``: whether the head is the embedding. ``gradients``: of blocks whose parameters are on
    the host; none: of no block.
    """
    kinds, num = _kinds(profile.kinds), len(profile.kinds)
    works, placed, sent = list(profile.works), list[Run](), deque[int]()
    every = list(_whole(profile, runs, first, tied=tied))
    added = brought(runs, dict(gradients)) if gradients else [Brought()] * len(runs)
    last: tuple[EventKind, ...] = ()
    known: dict[tuple[int, tuple[int, ...]], _Left] = {}
    for place, (run, own, more) in enumerate(zip(runs, every, added, strict=True)):
        key, is_last = (id(own), tuple(sent)), place == len(runs) - 1
        if not gradients and not is_last and key in known:
            work, after, last = known[key]
            placed.append(replace(run, work=work))
            sent = deque(after)
            continue
        made = list[int]()
        for event, leaves in with_copies(profile, run, own, more) if gradients else own:
            made += [] if event is None else [event]
            sent.extend(leaves)
            if leaves:
                last = tuple(kinds[each] for each in (*sent, *added[-1].gone_last))
            while len(sent) > NUM_ON_THE_WAY:
                made.append(num + sent.popleft())
        made += [num + each for each in sent] if is_last else []
        made += gone_copies(profile, more.gone_last)
        work = run.work
        if made != list(profile.works[work].events):
            works.append(with_events(profile.works[work], tuple(made)))
            work = len(works) - 1
        placed.append(replace(run, work=work))
        known[key] = _Left(work, tuple(sent), last)
    return Leaving(replace(profile, kinds=kinds, works=tuple(works)), tuple(placed), last)


class _Left(NamedTuple):
    """What became of a run's gradients, which hangs on what was on its way before.

    Attributes:
        work: Its work, with what goes.
        sent: What is on its way behind it.
        last: See ``Leaving``.
    """

    work: int
    sent: tuple[int, ...]
    last: tuple[EventKind, ...]


@once_for_each
def _kinds(own: tuple[EventKind, ...]) -> tuple[EventKind, ...]:
    """Return kinds with those that go, oldest first, and those of copies as large, as one value."""
    gone = (EventKind(negated_terms(kind.terms), kind.item, "", OLDEST) for kind in own)
    return (*own, *gone, *copy_kinds(own))


def _whole(
    profile: Profile, runs: Sequence[Run], first: Sequence[Run], *, tied: bool
) -> Iterator[list[Event]]:
    """Yield the events of every run, with the kinds of gradients that are whole behind each.

    Of blocks that run alike they are one value.
    """
    waiting, works = list[int](), profile.works
    chunks = [place for place, run in enumerate(first) if run.group == "chunk"]
    for place, (run, like) in enumerate(zip(runs, first, strict=True)):
        like_events = None if run == like else works[like.work].events
        events = _found(profile.kinds, works[run.work].events, like_events)
        if not is_block(like):
            events = [(event, list(leaves)) for event, leaves in events]
            is_last = place == len(first) - 1
            waits = (tied and not is_last) or like.group == "chunk"
            for _, leaves in events if waits else ():
                waiting += [each for each in leaves if is_of_head(profile, each)]
                leaves[:] = [each for each in leaves if not is_of_head(profile, each)]
            if is_last or (chunks and place == chunks[-1] and not tied):
                events.append((None, waiting))
                waiting = []
        yield events


@once_for_each
def _found(
    kinds: tuple[EventKind, ...], events: tuple[int, ...], like: tuple[int, ...] | None
) -> list[Event]:
    """Return a run's events, with the gradients that are whole behind each.

    ``like``: of the run that makes the gradients that it adds to: where these were there before,
    that is where what is added to them goes. None: it makes them itself.
    """
    made = gradients_of(kinds)
    expected = [event for event in like or () if event in made]
    leaves: list[list[int]] = [[] for _ in range(len(events) + 1)]
    for place, event in enumerate(events):
        if like is None and event in made:
            leaves[_taken_at(kinds, events, place)].append(event)
        elif like is not None and expected and _ends(kinds[event], kinds[expected[0]]):
            leaves[place].append(expected.pop(0))
    leaves[-1] += expected
    return list(zip((*events, None), leaves, strict=True))


def _taken_at(kinds: Sequence[EventKind], events: Sequence[int], place: int) -> int:
    """Return behind which event a gradient is taken that comes at a place.

    The operation that makes it may make its input's gradient too, and let go of what it read. That
    input's is added to what others have of it, if others do, before the weight has its gradient:
    ``linear`` is a transposed weight, a flattened input, a product, taken back in turn.
    """
    after = [kinds[event] for event in events[place + 1 :]]
    makes_input = bool(after) and sign(after[0]) == 1
    num_gone = len(list(takewhile(lambda kind: sign(kind) == -1, after[makes_input:])))
    end = makes_input + num_gone
    given = after[0].terms if makes_input else ()
    gone = negated_terms(given)
    if makes_input and [kind.terms for kind in after[end : end + 3]] == [given, gone, gone]:
        end += 3
    return place + end


def _ends(kind: EventKind, gradient: EventKind) -> bool:
    """Whether a tensor goes that is as large as a gradient."""
    return kind.terms == negated_terms(gradient.terms)
