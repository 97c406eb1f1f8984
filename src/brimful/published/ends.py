"""The embedding, and the last norm with the head, as units of their own in FSDP2.

Ours gathers both with the root, from the first forward to the last gradient. As units the embedding
is there for its forward and its backward; norm and head from their forward to their backward, after
which their gradients are reduced. The loss is outside of them: its gradient is what gathers the
last block again.

Source: ``apply_fsdp`` in ``torchtitan/models/llama3/infra/parallelize.py`` since June 2025.
"""

from typing import NamedTuple

from brimful.cost.additions import COME, GO, Piece
from brimful.cost.profiles import EventKind
from brimful.cost.sections import Event, Section, apart, of_bytes
from brimful.cost.spread import negated_terms
from brimful.published.logit_copies import is_whole
from brimful.values.results import GATHERED, GRADIENTS, ITEM_NAMES, PARAMETERS, REDUCED

_GATHERED, _GRADIENT, _WHOLE, _REDUCED = map(
    ITEM_NAMES.index, (GATHERED, GRADIENTS, PARAMETERS, REDUCED)
)


class Unit(NamedTuple):
    """Bytes of one unit.

    Attributes:
        whole: Its parameters in the type that computes.
        cast: Its shard in that type; 0 where it is held so.
        reduced: Whole gradients in the type that they are reduced in.
        shard: Their shard.
    """

    whole: int
    cast: int
    reduced: int
    shard: int


class Ends(NamedTuple):
    """Both units."""

    embedding: Unit
    head: Unit


_REST = frozenset({
    Piece.REST_CAST, Piece.REST, Piece.REST_GATHERED, Piece.REST_BUFFER, Piece.REST_SHARD,
    Piece.REST_GRADIENTS,
})  # fmt: skip


def with_separate_ends(sections: list[Section], ends: Ends) -> list[Section]:
    """Return the only micro-batch of a step whose ends are units of their own.

    ``sections``: the runs, with the pieces of ZeRO-2 or ZeRO-3 and a loss that is computed at once.
    """
    bare = [s._replace(events=tuple(e for e in s.events if e.piece not in _REST)) for s in sections]
    forward = [n for n, s in enumerate(bare) if s.run.phase == "forward"]
    first, last = forward[0], forward[-1]
    blocks = [n for n, s in enumerate(bare) if s.run.phase == "backward" and s.run.group]
    found = list(bare)
    found[first] = _around(bare[first], _gathered(ends.embedding), (_whole(GO, ends.embedding),))
    found[first + 1] = _behind_gather(bare[first + 1], (_buffer(GO, ends.embedding),))
    found[last] = _head(bare[last], ends.head)
    found[last + 1] = _loss(bare[last + 1], ends.head, _gradients(sections[last + 1]))
    found[blocks[0]] = _before_reduction(bare[blocks[0]], (_buffers(GO, ends.head),))
    found[blocks[-1]] = _behind_gather(bare[blocks[-1]], _ahead(ends.embedding))
    found[-1] = _embedding(bare[-1], ends.embedding, _gradients(sections[-1]))
    return found


def _around(section: Section, before: tuple[Event, ...], behind: tuple[Event, ...]) -> Section:
    return section._replace(events=(*before, *section.events, *behind))


def _behind_gather(section: Section, events: tuple[Event, ...]) -> Section:
    """Insert events where a block has been gathered, before its own."""
    pieces = [n for n, e in enumerate(section.events) if (e.sign, e.piece) == (COME, Piece.BLOCK)]
    there = pieces[0] + 1 if pieces else 0
    return section._replace(events=(*section.events[:there], *events, *section.events[there:]))


def _before_reduction(section: Section, events: tuple[Event, ...]) -> Section:
    """Insert events before a block's gradients are put together."""
    places = [
        n for n, e in enumerate(section.events) if (e.sign, e.piece) == (COME, Piece.BLOCK_BUFFER)
    ]
    there = places[0] if places else len(section.events)
    return section._replace(events=(*section.events[:there], *events, *section.events[there:]))


def _head(section: Section, unit: Unit) -> Section:
    """Gather norm and head behind the last block, whose buffer goes then."""
    gone = tuple(e for e in section.events if e.piece is not None)
    own = tuple(e for e in section.events if e.piece is None)
    return section._replace(events=(*_gathered(unit), *gone, *own, _buffer(GO, unit)))


def _loss(section: Section, unit: Unit, gradients: tuple[Event, ...]) -> Section:
    """Gather the last block when the loss is behind; reduce what norm and head have made."""
    ahead = tuple(e for e in section.events if e.piece is not None)
    own = tuple(e for e in section.events if e.piece is None)
    comes = [n for n, e in enumerate(own) if is_whole(e.kind) and e.kind.terms[0].coefficient > 0]
    there = comes[-1] + 1 if comes else 0
    reduced = (_whole(GO, unit), _buffers(COME, unit), *gradients, _shard(unit))
    return section._replace(events=(*own[:there], *ahead, *own[there:], *reduced))


def _embedding(section: Section, unit: Unit, gradients: tuple[Event, ...]) -> Section:
    """Let the embedding come from its buffer; reduce its gradient when all else is reduced."""
    come = (_whole(COME, unit), _buffer(GO, unit))
    behind = (
        _whole(GO, unit), _buffers(COME, unit), *gradients, _shard(unit), _buffers(GO, unit),
    )  # fmt: skip
    return _around(section, come, behind)


def _gradients(section: Section) -> tuple[Event, ...]:
    """Return how the gradients go that a run makes."""
    return tuple(
        Event(EventKind(negated_terms(e.kind.terms), _GRADIENT, ""))
        for e in section.events
        if e.piece is None and e.kind.item == _GRADIENT and e.kind.terms[0].coefficient > 0
    )


def _ahead(unit: Unit) -> tuple[Event, ...]:
    """Return how a unit's shards come into their buffer."""
    cast = _sized(unit.cast, _GATHERED, 2), _sized(-unit.cast, _GATHERED, 2)
    return (cast[0], _buffer(COME, unit), cast[1]) if unit.cast else (_buffer(COME, unit),)


def _gathered(unit: Unit) -> tuple[Event, ...]:
    return *_ahead(unit), _whole(COME, unit)


def _whole(sign: int, unit: Unit) -> Event:
    return _sized(sign * unit.whole, _WHOLE)


def _buffer(sign: int, unit: Unit) -> Event:
    return _sized(sign * unit.whole, _GATHERED)


def _buffers(sign: int, unit: Unit) -> Event:
    """Return the buffer in which gradients are reduced, coming or going."""
    return _sized(sign * unit.reduced, _REDUCED)


def _shard(unit: Unit) -> Event:
    return _sized(unit.shard, _GRADIENT)


def _sized(num_bytes: int, item: int, number: int = 1) -> Event:
    return Event(apart(of_bytes(num_bytes, item), number))
