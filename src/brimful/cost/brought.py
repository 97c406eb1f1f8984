"""Blocks whose parameters are on the host: what bringing them makes of a profile's runs.

A block is brought before it runs, and the one that runs next with it. In forward it goes when it
has run. In backward a plain block goes when the next one begins; of one that is computed again each
weight goes with the operation that read it last. Where all of a model trains in the type in which
it is held, a copy is as large as its gradient: kinds of gradients say what is brought.

Source: ``build/offload/parameters.py``.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from brimful.cost.additions import Neighbours, is_block, neighbours
from brimful.cost.profiles import Dimensions, EventKind, Profile, Run
from brimful.cost.spread import negated_terms
from brimful.cost.trained import trained_recipe
from brimful.cost.trajectory import evaluate_terms
from brimful.files.remembered import once_for_each
from brimful.models.config import layout_of
from brimful.values.job import Job
from brimful.values.results import AUTOCAST_CACHE, GRADIENTS, ITEM_NAMES, PARAMETERS

NUM_ON_THE_WAY = 2
"""Gradients that the device still has while the next one is computed."""
OLDEST = 10**9
"""Of equal copies the one that came first goes first: more than there ever are."""
_PARAMETER = ITEM_NAMES.index(PARAMETERS)
_GRADIENT = ITEM_NAMES.index(GRADIENTS)
_CAST = ITEM_NAMES.index(AUTOCAST_CACHE)
_HEAD = "V"
"""The dimension by which the weights of embedding and head are told."""
Gradients = tuple[tuple[str, tuple[int, ...]], ...]
"""By the group of a block: kinds of the gradients of its parameters, in their order."""
Event = tuple[int | None, list[int]]
"""An event, if it is one, and the kinds of gradients that are whole behind it."""


class Brought(NamedTuple):
    """What is added to a run: kinds of gradients, as large as the copies that come and go.

    Attributes:
        gone_first: Copies that go before it.
        come: That come before it, behind those.
        gone_last: That go behind it.
        one_by_one: Whether its own go as their gradients are made.
        gradients: Of the block, in the order of parameters.
    """

    gone_first: tuple[int, ...] = ()
    come: tuple[int, ...] = ()
    gone_last: tuple[int, ...] = ()
    one_by_one: bool = False
    gradients: tuple[int, ...] = ()


def copy_kinds(own: Sequence[EventKind]) -> tuple[EventKind, ...]:
    """Return kinds of copies as large as tensors of other kinds, coming, then going."""
    come = (EventKind(kind.terms, _PARAMETER, "") for kind in own)
    gone = (EventKind(negated_terms(kind.terms), _PARAMETER, "", OLDEST) for kind in own)
    return (*come, *gone)


def brought(runs: Sequence[Run], gradients: Mapping[str, tuple[int, ...]]) -> list[Brought]:
    """Say of every run which copies come and go.

    ``gradients``: of its blocks (``block_gradients``).
    """
    found, blocks = list[Brought](), [run for run in runs if is_block(run)]
    ends_plain = not _is_again(blocks[-1])
    place = 0
    for number, (run, at) in enumerate(zip(runs, neighbours(runs), strict=True)):
        is_end = number == len(runs) - 1
        last = gradients[blocks[-1].group][::-1] if is_end and ends_plain else ()
        if not is_block(run):
            found.append(Brought(gone_last=last))
            continue
        before = blocks[place - 1] if place else run
        behind = blocks[place + 1] if place + 1 < len(blocks) else run
        place += 1
        made = _of_block(run, at, (before, behind), gradients)
        found.append(made._replace(gone_last=(*made.gone_last, *last)))
    return found


def _of_block(
    run: Run, at: Neighbours, beside: tuple[Run, Run], gradients: Mapping[str, tuple[int, ...]]
) -> Brought:
    before, behind = beside
    own = gradients[run.group]
    ahead = () if at.last_block else gradients[behind.group if run.role == "last" else run.group]
    come = (*own, *ahead) if at.first_block else ahead
    if run.phase == "forward":
        return Brought(come=come, gone_last=own[::-1])
    stays = not at.first_block and not _is_again(before)
    gone = gradients[before.group][::-1] if stays else ()
    return Brought(gone_first=gone, come=come, one_by_one=_is_again(run), gradients=own)


def _is_again(run: Run) -> bool:
    return run.group.startswith("checkpointed")


def block_gradients(job: Job, profile: Profile, runs: Sequence[Run], dims: Dimensions) -> Gradients:
    """Return the gradients of blocks in the order of parameters, told by their sizes."""
    element = trained_recipe(job).gradient
    kinds = list({run.parameters: None for run in layout_of(job.model).blocks})
    found = dict[str, tuple[int, ...]]()
    for run in runs:
        if run.phase == "backward" and is_block(run):
            events = profile.works[run.work].events[::-1]
            left = [event for event in events if makes_gradient(profile, event)]
            ordered = list[int]()
            every = kinds[min(run.part, len(kinds) - 1)]
            has_biases = len(every) == len(left)  # which a shared profile may not have
            for parameter in every if has_biases else (p for p in every if p.kind != "bias"):
                size = parameter.num_elements * element
                for event in left:
                    if evaluate_terms(profile.kinds[event].terms, dims) == size:
                        ordered.append(event)
                        left.remove(event)
                        break
            found[run.group] = (*left, *ordered)
    return tuple(found.items())


def with_copies(
    profile: Profile, run: Run, events: Sequence[Event], more: Brought
) -> Iterator[Event]:
    """Yield a run's events with those of copies; a block's gradients leave together at its end."""
    own = list(_uncached(profile, run, events))
    yield from _of_a_block(profile, run, own, more) if is_block(run) else own


def _of_a_block(
    profile: Profile, run: Run, events: Sequence[Event], more: Brought
) -> Iterator[Event]:
    """Yield a block's events where its gradients leave together: sent in order, gone in reverse.

    What is brought for it comes before the first operation that reads a copy; copies that go one by
    one do so where their gradients are whole, or when what is computed from them is.
    """
    every, num, own_last = list[int](), len(profile.kinds), more.gradients
    casts = [place for place, (event, _) in enumerate(events) if _casts(profile, event)]
    cast = {term.factors for kind in profile.kinds if kind.item == _CAST for term in kind.terms}
    own = [event for event, _ in events if event is not None and makes_gradient(profile, event)]
    start = _first_read(profile, run, events, cast) if casts or not more.one_by_one else 0
    for place, (event, leaves) in enumerate(events):
        if place == start:
            before = gone_copies(profile, more.gone_first) + [2 * num + each for each in more.come]
            yield from ((each, []) for each in before)
        yield event, []
        if more.one_by_one:
            gone = [e for e in leaves if not _factors(profile, e) <= cast]
            if casts and place == casts[-1]:
                gone += [e for e in own if _factors(profile, e) <= cast]
            yield from ((each, []) for each in gone_copies(profile, gone))
        every += leaves
    yield None, [*own_last[:-NUM_ON_THE_WAY][::-1], *own_last[-NUM_ON_THE_WAY:]] if every else []


def _first_read(profile: Profile, run: Run, events: Sequence[Event], cast: set[str]) -> int:
    """Return the place of the first event of the operation that reads a copy first.

    That is the first of all, but where backward reads what was cast from matrices: there it is that
    which makes the first gradient of another parameter, with what it multiplies.
    """
    if run.phase == "forward" or _is_again(run) or not cast:
        return 0
    others = (
        place
        for place, (event, _) in enumerate(events)
        if event is not None
        and makes_gradient(profile, event)
        and not _factors(profile, event) <= cast
    )
    place = next(others, 0)
    while place and _sign_of(profile, events[place - 1][0]) > 0:
        place -= 1
    return place


def _uncached(profile: Profile, run: Run, events: Sequence[Event]) -> Iterator[Event]:
    """Yield a run's events where what is cast is a copy, which autocast does not cache.

    It caches parameters. What is cast of a copy goes with the product that it is for, unless a
    backward keeps it; and there is less to clear when the forward ends.
    """
    waiting, is_forward, is_made = list[int](), run.phase == "forward", False
    for event, leaves in events:
        change = _sign_of(profile, event)
        if is_made and change:  # what a library keeps is asked for by the product, before
            yield from ((len(profile.kinds) + each, []) for each in waiting)
            waiting, is_made = [], False
        is_cast = event is not None and profile.kinds[event].item == _CAST
        is_cleared = is_cast and change < 0 and is_forward and not is_block(run)
        if event is not None and is_cleared and not is_of_head(profile, event):
            continue
        yield event, leaves
        is_made = is_made or (bool(waiting) and change > 0)
        if event is not None and is_forward and _is_again(run) and _casts(profile, event):
            waiting.append(event)
    yield from ((len(profile.kinds) + each, []) for each in waiting)


def gone_copies(profile: Profile, gradients: Sequence[int]) -> list[int]:
    """Return the events by which copies go that are as large as gradients of these kinds."""
    return [3 * len(profile.kinds) + each for each in gradients]


def makes_gradient(profile: Profile, event: int) -> bool:
    """Whether an event brings a gradient."""
    return event in gradients_of(profile.kinds)  # and is not added


@once_for_each
def gradients_of(kinds: tuple[EventKind, ...]) -> frozenset[int]:
    """Return the events that bring gradients."""
    places = range(len(kinds))
    return frozenset(n for n in places if kinds[n].item == _GRADIENT and sign(kinds[n]) > 0)


def sign(kind: EventKind) -> int:
    """Return 1 of what comes, -1 of what goes, 0 of what is marked."""
    total = sum(term.coefficient for term in kind.terms)
    return (total > 0) - (total < 0)


def is_of_head(profile: Profile, kind: int) -> bool:
    """Whether a kind is as large as embedding or head."""
    return any(_HEAD in term.factors for term in profile.kinds[kind].terms)


def _factors(profile: Profile, event: int) -> set[str]:
    return {term.factors for term in profile.kinds[event].terms}


def _casts(profile: Profile, event: int | None) -> bool:
    """Whether a weight comes in another type."""
    comes = _sign_of(profile, event) > 0
    return event is not None and comes and profile.kinds[event].item == _CAST


def _sign_of(profile: Profile, event: int | None) -> int:
    if event is None or event >= len(profile.kinds):
        return 0
    return sign(profile.kinds[event])
