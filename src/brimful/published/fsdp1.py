"""FSDP1 in the place of FSDP2: one flat parameter a unit, and what its hooks keep.

- A unit is gathered into one flat buffer, of which parameters are views; nothing is copied out of
  it. It goes behind the unit's forward, and is there again for its backward.
- The next unit's is gathered ahead in backward where the forward has said that it will be needed:
  not where it ran without gradients, as it does under re-entrant checkpoints.
- Gradients of a unit's parameters are put together into a flat one, which is reduced in its type.
- Of a unit that does not train the hook that lets go of its parameters is put on its inputs. It
  holds them, as leaves with their gradients, until backward ends: under re-entrant checkpoints
  every block's input and its gradient.
- Where frozen parameters lie in one flat parameter with some that train it all has a gradient, and
  where processes only reduce at the last micro-batch of a step that stays whole until then.

Source: ``torch/distributed/fsdp``: ``_runtime_utils.py`` (``_pre_forward``, ``_reduce_grad``,
``_get_handle_to_prefetch``, ``_register_post_backward_reshard_only_hook``), ``_flat_param.py``
(``_alloc_padded_unsharded_flat_param``); ``CheckpointFunction`` in ``torch/utils/checkpoint.py``.
"""

from collections.abc import Iterator
from typing import NamedTuple

from brimful.cost.additions import COME, GO, Piece, Signed, is_block
from brimful.cost.profiles import EventKind, Group, Term
from brimful.cost.sections import Event, Section, apart, ended, of_bytes, of_piece
from brimful.values.results import ITEM_NAMES, REDUCED, SAVED_ACTIVATIONS

_SAVED, _REDUCED = ITEM_NAMES.index(SAVED_ACTIVATIONS), ITEM_NAMES.index(REDUCED)


class FlatUnits(NamedTuple):
    """What FSDP1 does with a model.

    Attributes:
        block_bytes: Of the flat gradient of a block's unit.
        rest_bytes: Of the root's.
        widens: Whether gradients are reduced in fp32 though they are narrower.
        prefetches: Whether backward gathers the next unit ahead.
        keeps_inputs: Whether inputs of blocks and their gradients stay until backward ends.
        holds: Whether gradients stay whole, as they do until a step's last micro-batch.
    """

    block_bytes: int
    rest_bytes: int
    widens: bool
    prefetches: bool
    keeps_inputs: bool
    holds: bool


_GATHER = ((COME, Piece.BLOCK_CAST), (COME, Piece.BLOCK_GATHERED), (GO, Piece.BLOCK_CAST))
_NOT_COPIED: dict[Signed, tuple[Signed, ...]] = {
    (COME, Piece.BLOCK): (),
    (COME, Piece.REST): (),
    (GO, Piece.BLOCK_GATHERED): (),
    (GO, Piece.REST_GATHERED): (),
    (GO, Piece.BLOCK): ((GO, Piece.BLOCK_GATHERED),),
    (GO, Piece.REST): ((GO, Piece.REST_GATHERED),),
}
"""Nothing is copied out of what was gathered, which stays as long as the copies of FSDP2."""
_NOT_AHEAD: dict[Signed, tuple[Signed, ...]] = {
    **_NOT_COPIED,
    **dict.fromkeys(_GATHER, ()),
    (COME, Piece.BLOCK): _GATHER,
}
"""The same where a block is gathered as its backward begins, and not before."""


def as_flat_units(sections: list[Section], units: FlatUnits) -> list[Section]:
    """Return a micro-batch of FSDP2 as FSDP1 runs it.

    ``sections``: the runs, with the pieces of ZeRO-2 or ZeRO-3.
    """
    found = [s._replace(events=tuple(_flat(s, units))) for s in sections]
    found = _with_kept_inputs(found) if units.keeps_inputs else found
    return _with_held(found, units) if units.holds else found


def _flat(section: Section, units: FlatUnits) -> Iterator[Event]:
    """Yield a run's events with flat parameters and gradients."""
    is_ahead = section.run.phase == "forward" or units.prefetches
    gathered = _NOT_COPIED if is_ahead else _NOT_AHEAD
    wide = 1 + units.widens
    reduced: dict[Signed, tuple[Event, ...]] = {
        (COME, Piece.BLOCK_BUFFER): _reduced(units.block_bytes, widens=units.widens),
        (GO, Piece.BLOCK_BUFFER): (),  # of the block before
        (COME, Piece.REST_BUFFER): _reduced(units.rest_bytes, widens=units.widens),
        (GO, Piece.REST_BUFFER): (_sized(-units.rest_bytes * wide),),
    }
    if units.holds:
        reduced |= dict.fromkeys(reduced, ())
    reduces = False
    for event in section.events:
        if event.piece is None:
            yield event
            continue
        signed = event.sign, event.piece
        reduces |= signed == (COME, Piece.BLOCK_BUFFER)
        becomes = tuple(of_piece(*each) for each in gathered.get(signed, (signed,)))
        yield from reduced.get(signed, becomes)
    if reduces and not units.holds:
        yield _sized(-units.block_bytes * wide)


def _with_held(sections: list[Section], units: FlatUnits) -> list[Section]:
    """Return the first micro-batch of a step, whose gradients stay whole as they come.

    Those of a unit's parameters are put together while it is still gathered.
    """
    found, gone = list[Section](), list[Event]()
    held = of_bytes(units.block_bytes, _REDUCED)
    for section in sections:
        run = section.run
        if run.phase != "backward" or not is_block(run):
            found.append(section)
            continue
        there = next(n for n, e in enumerate(section.events) if _is_freed(e))
        apart_ones = _sized(units.block_bytes), _sized(-units.block_bytes)
        together = apart_ones[0], Event(held), apart_ones[1]
        found.append(_inserted(section, there, together))
        gone.append(Event(_caused(ended(held), run.group if run.role == "middle" else "")))
    last = found[-1]
    rest = (_sized(units.rest_bytes), _sized(-units.rest_bytes)) if units.rest_bytes else ()
    return [*found[:-1], last._replace(events=(*last.events, *rest, *gone))]


def _is_freed(event: Event) -> bool:
    return (event.sign, event.piece) == (GO, Piece.BLOCK_GATHERED)


def _inserted(section: Section, place: int, events: tuple[Event, ...]) -> Section:
    return section._replace(events=(*section.events[:place], *events, *section.events[place:]))


def _reduced(num_bytes: int, *, widens: bool) -> tuple[Event, ...]:
    """Return how a flat gradient comes; where it is widened another one takes its place."""
    wider = (_sized(2 * num_bytes), _sized(-num_bytes)) if widens else ()
    return _sized(num_bytes), *wider


def _with_kept_inputs(sections: list[Section]) -> list[Section]:
    """Return a micro-batch that lets go of blocks' inputs, and of their gradients, at its end."""
    kept, found = list[Event](), list[Section]()
    for section in sections:
        run = section.run
        if not (is_block(run) and run.phase == "backward" and run.group == "checkpointed"):
            found.append(section)
            continue
        inputs = [e for e in section.events if _is_input(e)]
        events = [e for e in section.events if not _is_input(e)]
        gradients = [] if run.role == "first" else [_gradient(e, COME) for e in inputs]
        found.append(section._replace(events=(*events, *gradients)))
        origin = run.group if run.role == "middle" else ""
        gone = [*inputs, *(_gradient(e, GO) for e in inputs if run.role != "first")]
        kept += [e._replace(kind=_caused(e.kind, origin)) for e in gone]
    last = found[-1]
    return [*found[:-1], last._replace(events=(*last.events, *kept))]


def _is_input(event: Event) -> bool:
    """Whether a checkpoint's input goes: all else that a block keeps is computed again."""
    kind = event.kind
    return event.piece is None and kind.item == _SAVED and kind.terms[0].coefficient < 0


def _gradient(event: Event, sign: int) -> Event:
    """Return the gradient of an input, coming or going."""
    (term,) = event.kind.terms
    size = Term(term.factors, sign * abs(term.coefficient))
    return Event(apart(EventKind((size,), _SAVED, "")))


def _caused(kind: EventKind, origin: Group) -> EventKind:
    return EventKind(kind.terms, kind.item, origin)


def _sized(num_bytes: int) -> Event:
    return Event(of_bytes(num_bytes, _REDUCED))
