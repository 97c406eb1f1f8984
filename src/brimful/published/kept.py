"""What a block of another program keeps until its backward, more or less than ours.

More: a tensor that comes with a block's backward, or its forward where nothing is computed again,
and goes when that ends. Less: the tensors of that size that live longest are left out.
"""

from collections import defaultdict
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import msgspec

from brimful.cost.additions import is_block
from brimful.cost.profiles import Alike, Dimensions, EventKind, Group, Term, alike
from brimful.cost.sections import Event, Section, apart, ended
from brimful.values.results import ITEM_NAMES, SAVED_ACTIVATIONS, TRANSIENTS

_SAVED, _TRANSIENT = map(ITEM_NAMES.index, (SAVED_ACTIVATIONS, TRANSIENTS))
_OF_BATCH = "BSC"


class Kept(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tensor of every block.

    Attributes:
        size: Bytes by products of dimensions (``cost.profiles.Dimensions``).
        times: How many there are; -2: two of ours are not there.
        with_graph: Whether they hang on nodes of the graph, which the loop's name of the loss holds
            until the next loss is computed: the next forward finds them there.
        with_outputs: Whether they are outputs of the model, which go when the loss is there: those
            of blocks that are computed again too.
    """

    size: dict[str, float]
    times: int = 1
    with_graph: bool = False
    with_outputs: bool = False


def at_widths(kept: Kept, dims: Dimensions) -> Kept:
    """Return the same with no letters but those of a batch, as a model's own profile has them."""
    size: dict[str, float] = defaultdict(float)
    for factors, coefficient in kept.size.items():
        letters = "".join(factor for factor in factors if factor in _OF_BATCH)
        widths = (getattr(dims, factor) for factor in factors if factor not in _OF_BATCH)
        size[letters] += coefficient * prod(widths)
    return msgspec.structs.replace(kept, size=dict(size))


def with_kept(sections: list[Section], kept: Sequence[Kept]) -> list[Section]:
    """Return a micro-batch whose blocks keep this beside what ours do.

    ``kept``: tensors of a block. Plain blocks, which keep them from their forward on, are left as
    they are where there are fewer.
    """
    of_blocks = [each for each in kept if not each.with_outputs]
    found = [_with_kept(section, of_blocks) for section in sections]
    for number, each in enumerate(kept, len(kept) + 1):
        if each.with_graph:
            found = _with_last(found, each, number)
        if each.with_outputs:
            found = _with_outputs(found, each, number)
    return found


def _with_outputs(sections: list[Section], kept: Kept, number: int) -> list[Section]:
    """Let every block's forward make what goes with the last run of the forward."""
    kind, found, gone = apart(_kind(kept, _SAVED), number), list(sections), list[Event]()
    last = max(n for n, s in enumerate(sections) if s.run.phase == "forward")
    for place, section in enumerate(sections):
        run = section.run
        if is_block(run) and run.phase == "forward":
            found[place] = section._replace(events=(Event(kind), *section.events))
            origin = run.group if run.role == "middle" else ""
            gone.append(Event(ended(EventKind(kind.terms, _SAVED, origin))))
    return [
        *found[:last],
        found[last]._replace(events=(*found[last].events, *gone)),
        *found[last + 1 :],
    ]


def _with_last(sections: list[Section], kept: Kept, number: int) -> list[Section]:
    """Let the forward find what the blocks of the micro-batch before have kept."""
    kind = apart(_kind(kept, _SAVED), number)
    blocks = [s.run for s in sections if is_block(s.run) and s.run.phase == "forward"]
    origins: list[Group] = [run.group if run.role == "middle" else "" for run in blocks]
    come = [EventKind(kind.terms, _SAVED, origin) for origin in origins] * kept.times
    gone = map(ended, come)
    first, last = sections[0], max(n for n, s in enumerate(sections) if s.run.phase == "forward")
    found = list(sections)
    found[0] = first._replace(events=(*map(Event, come), *first.events))
    found[last] = found[last]._replace(events=(*found[last].events, *map(Event, gone)))
    return found


def _with_kept(section: Section, kept: Sequence[Kept]) -> Section:
    run = section.run
    if not is_block(run):
        return section
    is_forward, is_plain = run.phase == "forward", run.group == "plain"
    if is_forward and not is_plain:
        return section
    item, events = (_SAVED if is_plain else _TRANSIENT), list(section.events)
    for number, each in enumerate(kept):
        if each.times < 0:
            events = events if is_plain else without(events, _kind(each, item).terms, -each.times)
            continue
        kind = apart(_kind(each, item), number + 1)
        come = [Event(kind)] * each.times
        gone = [Event(ended(kind))] * each.times
        events = [*(come if is_forward or not is_plain else ()), *events]
        events += gone if not is_forward else ()
    return section._replace(events=tuple(events))


class _Life(NamedTuple):
    """Where a tensor comes and goes among the events of a run.

    Attributes:
        comes: -1: before the run.
        goes: The number of events: behind it.
        newer: Of one that came before the run, how many that also did came later.
    """

    comes: int
    goes: int
    newer: int = 0


def without(events: Sequence[Event], terms: tuple[Term, ...], times: int) -> list[Event]:
    """Leave out the tensors of a size that live longest among those that come and go here.

    ``times``: how many; fewer where there are not so many.
    """
    size = tuple((term.factors, term.coefficient) for term in terms)
    lives = {key: lives for key, lives in _lives(events).items() if key[0] == size}
    inside = [
        life for of in lives.values() for life in of if life.comes >= 0 and life.goes < len(events)
    ]
    longest = sorted(inside, key=lambda life: life.comes - life.goes)[:times]
    found: list[Event | None] = list(events)
    for of in lives.values():
        left = [life for life in of if life not in longest]
        for life in left:
            if life.goes < len(events):
                found[life.goes] = _with_newer(events[life.goes], life, left)
    for life in longest:
        found[life.comes] = found[life.goes] = None
    return [event for event in found if event is not None]


def _lives(events: Sequence[Event]) -> dict[Alike, list[_Life]]:
    """Follow a run: by size and class, where tensors come and go."""
    there: defaultdict[Alike, list[int]] = defaultdict(list)
    lives: defaultdict[Alike, list[_Life]] = defaultdict(list)
    for place, event in enumerate(events):
        kind = event.kind
        if event.piece is not None or not kind.terms or kind.origin:
            continue
        key, rows = alike(kind), there[alike(kind)]
        if kind.terms[0].coefficient > 0:
            rows.append(place)
        elif kind.newer < len(rows):
            lives[key].append(_Life(rows.pop(-1 - kind.newer), place))
        else:
            lives[key].append(_Life(-1, place, kind.newer - len(rows)))
    for key, rows in there.items():
        lives[key] += [_Life(place, len(events)) for place in rows]
    return lives


def _with_newer(event: Event, life: _Life, same: Sequence[_Life]) -> Event:
    """Let a tensor go that is told by how many of the same kind came later and are there."""
    later = sum(life.comes < other.comes < life.goes < other.goes for other in same)
    kind = event.kind
    return Event(EventKind(kind.terms, kind.item, kind.origin, later + life.newer))


def _kind(kept: Kept, item: int) -> EventKind:
    return EventKind(tuple(Term(factors, size) for factors, size in kept.size.items()), item, "")
