"""A step of the first rung taken apart into events, and put together again.

Runs refer to kinds and works by their places; here every event stands by itself, so that a program
that differs from ours is a function from events to events. Knows no program.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from brimful.cost.additions import GO
from brimful.cost.profiles import EventKind, Profile, Run, Term, Work
from brimful.cost.spread import (
    has_pieces,
    negated_terms,
    num_pieces,
    piece_kinds,
    replaced,
    with_events,
)
from brimful.values.results import ITEM_NAMES, LOGITS

Step = tuple[Profile, tuple[Run, ...]]


_NO_KIND = EventKind((), 0, "")
_LOGITS = ITEM_NAMES.index(LOGITS)


class Event(NamedTuple):
    """One event of a run.

    Attributes:
        kind: What comes or goes; of a piece its class only.
        piece: What sharding adds, instead.
        sign: Whether that comes or goes.
    """

    kind: EventKind
    piece: int | None = None
    sign: int = 0


class Section(NamedTuple):
    """A run with its events."""

    run: Run
    work: Work
    events: tuple[Event, ...]


Change = Callable[[list[Section]], list[Section]]


def taken_apart(step: Step) -> list[Section]:
    """Return the runs of a micro-batch with their events."""
    profile, runs = step
    return [
        Section(run, work, tuple(_event(profile, place) for place in work.events))
        for run in runs
        for work in (profile.works[run.work],)
    ]


def put_together(profile: Profile, sections: Sequence[Section]) -> Step:
    """Return a profile that has these runs, one work each, and the runs."""
    every = (event.kind for s in sections for event in s.events if event.piece is None)
    places = {kind: place for place, kind in enumerate(dict.fromkeys(every))}
    pieces = tuple(piece_kinds(profile.num_parts)) if has_pieces(profile) else ()
    base, num = len(places), num_pieces(profile)

    def place(event: Event) -> int:
        if event.piece is None:
            return places[event.kind]
        return base + event.piece + num * (event.sign == GO)

    works = tuple(with_events(s.work, tuple(map(place, s.events))) for s in sections)
    old = [section.run for section in sections]
    runs = tuple(Run(r.phase, r.group, r.role, n, r.part) for n, r in enumerate(old))
    kinds = (*places, *pieces)
    if pieces:
        return replaced(profile, kinds, works, profile.num_parts), runs
    return replace(profile, kinds=kinds, works=works, of_one={}), runs


def lettered(sections: list[Section], vocab_size: int) -> list[Section]:
    """Return runs of a model's own profile, in which logits have the letter of the vocabulary.

    ``sections``: runs whose formulas have no letters but those of a batch.
    """
    return [
        s._replace(events=tuple(e._replace(kind=_lettered(e.kind, vocab_size)) for e in s.events))
        for s in sections
    ]


def _lettered(kind: EventKind, vocab_size: int) -> EventKind:
    if kind.item != _LOGITS:
        return kind
    terms = (
        Term(f"{t.factors}V", t.coefficient / vocab_size) if not t.coefficient % vocab_size else t
        for t in kind.terms
    )
    return EventKind(tuple(terms), kind.item, kind.origin, kind.newer, kind.mark)


def changed(step: Step, changes: Iterable[Change]) -> Step:
    """Return a micro-batch after changes, in order."""
    sections = taken_apart(step)
    for change in changes:
        sections = change(sections)
    return put_together(step[0], sections)


def apart(kind: EventKind, number: int = 1) -> EventKind:
    """Return a kind of the same size that is taken for no other: terms of nothing tell them apart.

    ``number``: others have other numbers; ours have none.
    """
    return EventKind((*kind.terms, *(Term("", 0.0),) * number), kind.item, kind.origin)


def ended(kind: EventKind) -> EventKind:
    """Return the kind of the event in which a tensor of this kind goes."""
    return EventKind(negated_terms(kind.terms), kind.item, kind.origin)


def of_piece(sign: int, piece: int) -> Event:
    """Return a piece of what sharding adds, coming (1) or going (-1)."""
    return Event(_NO_KIND, piece, sign)


def of_bytes(num_bytes: float, item: int) -> EventKind:
    """Return the kind of a tensor whose size is no product of dimensions."""
    return EventKind((Term("", num_bytes),), item, "")


def _event(profile: Profile, place: int) -> Event:
    kind, num = profile.kinds[place], num_pieces(profile)
    base = len(profile.kinds) - 2 * num
    if place < base:
        return Event(kind)
    return Event(kind, (place - base) % num, 1 if place - base < num else GO)
