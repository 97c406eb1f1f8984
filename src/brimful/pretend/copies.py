"""Putting copies of a unit between it and the next, which is the same.

Pure arithmetic on the columns of a recording. Each new event is told by its origin: an event of
the old recording, and which copy of it (0: itself). What an event points to is found by moving the
old one's aim along by as many units.
"""

from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brimful.pretend.alike import NOWHERE, Pair, references
from brimful.pretend.blocks import NotPeriodicError
from brimful.pretend.recording import NEVER, OpCost, Recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A recording with copies in it, and where all of it comes from.

    Attributes:
        recording: Its columns, named as in the recording it was made of.
        row: Per row: which row of the old recording it is like.
        row_copy: Per row: which copy of it; 0 is the original.
    """

    recording: Recording
    row: NDArray[np.int64]
    row_copy: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sequence:
    """The new order of events.

    A number below ``num_events`` stands for that event of the old recording; the copies' events are
    numbered after those, copy by copy.

    Attributes:
        num_events: Events of the old recording.
        num_copies: Copies of the unit.
        unit: The unit's events.
        slot: Per old event: its place in ``unit``; NOWHERE if it is not in it.
        twin: Per old event: the event of the unit that it is like, if it is of the next unit.
        next_like: Per old event: the event of the next unit that is like it.
        order: Per new event: its number.
        place: Per number: the new event.
    """

    num_events: int
    num_copies: int
    unit: NDArray[np.int64]
    slot: NDArray[np.int64]
    twin: NDArray[np.int64]
    next_like: NDArray[np.int64]
    order: NDArray[np.int64]
    place: NDArray[np.int64]

    def number(self, event: NDArray[np.int64], copy: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of an event of the unit in one of the copies, or in the original."""
        return np.where(
            copy > 0, self.num_events + (copy - 1) * len(self.unit) + self.slot[event], event
        )

    def moved(self, points: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the new events that points come right before, the end of all among them."""
        return np.append(self.place[: self.num_events], len(self.order))[points]

    def origin(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the old event of each new one, and which copy of it it is."""
        copy, slot = np.divmod(self.order - self.num_events, max(1, len(self.unit)))
        is_copy = self.order >= self.num_events
        old = np.where(is_copy, self.unit[slot], np.minimum(self.order, self.num_events - 1))
        return old, np.where(is_copy, copy + 1, 0)


def put_copies(recording: Recording, pair: Pair, *, num_copies: int) -> Copied:
    """Put copies of a unit between it and the next, at least 1; no phase begins within units."""
    sequence = _sequence(len(recording.events), pair, num_copies)
    old, copy = sequence.origin()
    aim = _aims(recording, sequence, old, copy)
    rows = _rows(recording, sequence, old, aim)
    starts = sequence.moved(recording.phase_starts)
    births = recording.events[old] >= 0
    source = recording.events[old[births]]
    moved = replace(
        recording,
        **rows,
        **{name: getattr(recording, name)[source] for name in _PER_ROW},
        phase=_phase(recording, source, starts, rows["born"]),
        phase_starts=starts,
        marks=_sorted(sequence, recording.marks)[1],
        cache_flushes=_sorted(sequence, recording.cache_flushes)[1],
        costs=_costs(recording, sequence, starts),
    )
    if not np.array_equal(moved.died == NEVER, recording.died[source] == NEVER):
        raise NotPeriodicError(
            "not every unit's tensors are freed where those of its copy would be"
        )
    return Copied(recording=moved, row=source, row_copy=copy[births])


_PER_ROW = ("num_bytes", "stream", "owner", "op", "node", "line", "item", "shape_dtype")


def _sequence(num_events: int, pair: Pair, num_copies: int) -> _Sequence:
    unit = np.concatenate([np.arange(one.start, one.stop) for one, _ in pair.pieces])
    following = np.concatenate([np.arange(two.start, two.stop) for _, two in pair.pieces])
    slot, twin, next_like = (np.full(num_events, NOWHERE) for _ in range(3))
    slot[unit] = np.arange(len(unit))
    twin[following], next_like[unit] = unit, following
    order = _order(num_events, pair, num_copies, slot)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return _Sequence(
        num_events=num_events,
        num_copies=num_copies,
        unit=unit,
        slot=slot,
        twin=twin,
        next_like=next_like,
        order=order,
        place=place,
    )


def _order(
    num_events: int, pair: Pair, num_copies: int, slot: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Put the copies' pieces between the two units', upwards or downwards as these go."""
    parts, done = [], 0
    num_slots = sum(one.stop - one.start for one, _ in pair.pieces)
    for one, two in pair.pieces:
        edge = max(one.start, two.start)
        copies = np.arange(num_copies) if one.start < two.start else np.arange(num_copies)[::-1]
        numbers = num_events + copies[:, None] * num_slots + slot[one.start : one.stop]
        parts += [np.arange(done, edge), numbers.ravel()]
        done = edge
    return np.concatenate([*parts, np.arange(done, num_events)])


def _aims(
    recording: Recording,
    sequence: _Sequence,
    old: NDArray[np.int64],
    copy: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return what each new event points to, as a number of the sequence."""
    target = references(recording)
    aim, last = target[old], sequence.num_copies
    of_unit, of_next = sequence.slot[old] != NOWHERE, sequence.twin[old] != NOWHERE
    to_unit, to_next = sequence.slot[aim] != NOWHERE, sequence.twin[aim] != NOWHERE
    # An event of the unit that points down points, in the next unit, into this unit.
    raised = target[sequence.next_like[old]]
    down = of_unit & (sequence.slot[raised] != NOWHERE) & ~to_unit & ~to_next & (raised != NOWHERE)
    number = sequence.number
    cases = (
        (of_unit & to_unit, number(aim, copy)),
        (of_unit & to_next & (copy < last), number(sequence.twin[aim], copy + 1)),
        (down & (copy > 0), number(raised, copy - 1)),
        (of_next & to_unit, number(aim, np.full_like(copy, last))),
    )
    chosen = np.select([case for case, _ in cases], [value for _, value in cases], default=aim)
    return np.where(aim == NOWHERE, NOWHERE, chosen)


def _rows(
    recording: Recording,
    sequence: _Sequence,
    old: NDArray[np.int64],
    aim: NDArray[np.int64],
) -> dict[str, Any]:
    """Number the rows anew, in the order of their births."""
    births = recording.events[old] >= 0
    row_at = np.cumsum(births) - 1
    born = np.flatnonzero(births)
    frees = np.flatnonzero(~births)
    freed = row_at[sequence.place[aim[frees]]]
    died = np.full(len(born), NEVER)
    died[freed] = frees
    if np.count_nonzero(died != NEVER) != len(freed):
        raise NotPeriodicError("one tensor would be freed twice")
    events = row_at.copy()
    events[frees] = ~freed
    until = np.where(aim[born] == NOWHERE, 0, sequence.place[aim[born]] + 1)
    never = recording.in_use_until[recording.events[old[born]]] > sequence.num_events
    until[never] = len(events) + 1
    return {"events": events, "born": born, "died": died, "in_use_until": until}


def _sorted(
    sequence: _Sequence, starts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Move points that come right before events along with these, and copy those of the unit.

    Returns [new points] twice: which old point each is, and the event that it now comes before.
    """
    index = np.arange(len(starts))
    inside = index[np.append(sequence.slot, NOWHERE)[starts] != NOWHERE]
    copies = np.repeat(np.arange(1, sequence.num_copies + 1), len(inside))
    again = np.tile(inside, sequence.num_copies)
    copied = sequence.place[sequence.number(starts[again], copies)]
    places = np.concatenate([sequence.moved(starts), copied])
    order = np.argsort(places, kind="stable")
    return np.concatenate([index, again])[order], places[order]


def _phase(
    recording: Recording,
    row: NDArray[np.int64],
    starts: NDArray[np.int64],
    born: NDArray[np.int64],
) -> NDArray[np.int32]:
    """Return the new phase of rows."""
    before = (recording.phase_starts, recording.phase[row], recording.born[row])
    return _moved_phase(*before, starts, born).astype(np.int32)


def _moved_phase(
    old_starts: NDArray[np.int64],
    phase: NDArray[np.int32],
    event: NDArray[np.int64],
    starts: NDArray[np.int64],
    new_event: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the new phase of what happened at an event; ties of empty phases stay as they were."""
    ahead = np.searchsorted(old_starts, event, side="right") - 1 - phase
    found: NDArray[np.int64] = np.searchsorted(starts, new_event, side="right") - 1 - ahead
    return found


def _costs(
    recording: Recording, sequence: _Sequence, starts: NDArray[np.int64]
) -> tuple[OpCost, ...]:
    if not recording.costs:
        return ()
    event = np.array([cost.event for cost in recording.costs])
    phase = np.array([cost.phase for cost in recording.costs], dtype=np.int32)
    index, places = _sorted(sequence, event)
    before = (recording.phase_starts, phase[index], event[index])
    phases = _moved_phase(*before, starts, places).tolist()
    rest = [cost[2:] for cost in recording.costs]
    what = (rest[i] for i in index.tolist())
    return tuple(
        starmap(OpCost, ((e, p, *w) for e, p, w in zip(places.tolist(), phases, what, strict=True)))
    )
