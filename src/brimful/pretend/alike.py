"""Whether two neighbouring units of a tape are the same, event by event.

Same: equal sizes, operations, streams, classes and lines, owners that differ in the unit's number
only, and references to other events that go equally far. Then any number of copies can stand
between the two. Knows nothing of how copies are made.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brimful.pretend.blocks import NO_UNIT, Piece, Units
from brimful.pretend.recording import OpCost, Recording

NOWHERE = -1
_ABSOLUTE = 2
"""Stands for the distance, in units, to an event that is not in this unit or a neighbour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """What the names of a recording are, but for the number of the unit in them.

    Attributes:
        owner: A number for each of the recording's owners, equal where they are alike.
        phase: The same for its phases.
    """

    owner: NDArray[np.int64]
    phase: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A unit and the next, with their pieces in every chain that both are part of.

    Attributes:
        unit: Number of the first.
        pieces: Per chain: the piece of the first, the piece of the second.
    """

    unit: int
    pieces: tuple[tuple[Piece, Piece], ...]


def pair_of(units: Units, unit: int) -> Pair:
    """Collect the pieces of a unit and the next."""
    found = []
    for chain in units.chains:
        by_unit = {piece.unit: piece for piece in chain}
        if unit in by_unit and unit + 1 in by_unit:
            found.append((by_unit[unit], by_unit[unit + 1]))
    return Pair(unit=unit, pieces=tuple(found))


def references(recording: Recording) -> NDArray[np.int64]:
    """Return the event that each event points to.

    A free points to the allocation of what it frees; an allocation that other streams use points to
    the event after which they have done with it. All others point nowhere.
    """
    is_free = recording.events < 0
    row = np.where(is_free, ~recording.events, recording.events)
    until = np.where(recording.in_use_until <= len(is_free), recording.in_use_until - 1, NOWHERE)
    return np.where(is_free, recording.born[row], until[row])


def difference(recording: Recording, units: Units, pair: Pair, kinds: Kinds) -> str:
    """Say how the two units of a pair differ; empty if they do not."""
    first = pair.unit
    inside = sum(first_piece.stop - first_piece.start for first_piece, _ in pair.pieces)
    if not inside:
        return f"units {first} and {first + 1} never follow each other"
    facts = _facts(recording, units, kinds)
    points = _points(recording)
    for one, other in pair.pieces:
        if one.stop - one.start != other.stop - other.start:
            return (
                f"unit {first} has {one.stop - one.start} events and unit {first + 1} has "
                f"{other.stop - other.start} in {_phase(recording, one)}"
            )
        unequal = (facts[:, one.start : one.stop] != facts[:, other.start : other.stop]).any(axis=0)
        if unequal.any():
            event = int(np.argmax(unequal))
            return (
                f"units {first} and {first + 1} differ in event {event} of {one.stop - one.start} "
                f"in {_phase(recording, one)}"
            )
        if _within(points, one) != _within(points, other):
            return f"units {first} and {first + 1} differ in marks"
        if _work(recording.costs, one) != _work(recording.costs, other):
            return f"units {first} and {first + 1} differ in what their operations cost"
    return _stray(recording, units, pair)


def _stray(recording: Recording, units: Units, pair: Pair) -> str:
    """Find allocations of the pair that no common chain has, which copies would lack."""
    covered = np.zeros(len(recording.events), dtype=bool)
    for piece in (piece for pieces in pair.pieces for piece in pieces):
        covered[piece.start : piece.stop] = True
    ours = (units.of_event == pair.unit) | (units.of_event == pair.unit + 1)
    lost = np.flatnonzero(ours & ~covered & (recording.events >= 0))
    if len(lost):
        return f"event {lost[0]} of unit {units.of_event[lost[0]]} has no like in its neighbour"
    return ""


def _phase(recording: Recording, piece: Piece) -> str:
    return recording.phases[
        int(np.searchsorted(recording.phase_starts, piece.start, side="right")) - 1
    ]


def _facts(recording: Recording, units: Units, kinds: Kinds) -> NDArray[np.int64]:
    """Return, per event, numbers that are equal in two units if the events are alike."""
    births = recording.events >= 0
    kind = np.full(len(births), NOWHERE)
    kind[births] = row_kinds(recording, kinds)[recording.events[births]]
    chain, offset = _places(units, len(births))
    # A row is told by what it is: the first unit's chain may be broken where others' are not.
    number = np.where(births, _ordinals(units.of_event, kind), offset)
    chain[births] = NOWHERE
    target = references(recording)
    distance = units.of_event[target] - units.of_event
    is_near = (np.abs(distance) <= 1) & (units.of_event[target] != NO_UNIT)
    aim = np.stack(
        [
            np.where(is_near, distance, _ABSOLUTE),
            np.where(is_near, chain[target], target),
            np.where(is_near, kind[target], NOWHERE),
            np.where(is_near, number[target], NOWHERE),
        ]
    )
    return np.concatenate([kind[None], np.where(target == NOWHERE, NOWHERE, aim)])


def plain_kinds(recording: Recording) -> Kinds:
    """Take owners as they are, and all phases for one."""
    return Kinds(
        owner=np.arange(len(recording.owners)),
        phase=np.zeros(len(recording.phases), dtype=np.int64),
    )


def row_kinds(recording: Recording, kinds: Kinds) -> NDArray[np.int64]:
    """Give each row a number; rows that are alike have the same."""
    columns = (
        recording.num_bytes,
        kinds.owner[recording.owner],
        recording.op,
        recording.node,
        recording.line,
        recording.stream,
        recording.item,
        recording.shape_dtype,
        kinds.phase[recording.phase],
        recording.in_use_until > len(recording.events),
    )
    key = np.zeros(len(recording.num_bytes), dtype=np.int64)
    for column in columns:
        values, codes = np.unique(column, return_inverse=True)
        _, key = np.unique(key * (len(values) + 1) + codes, return_inverse=True)
    return key


def _places(units: Units, num_events: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the chain that each event is in, and how far into its piece it is."""
    chain, offset = np.full(num_events, NOWHERE), np.zeros(num_events, dtype=np.int64)
    for number, pieces in enumerate(units.chains):
        chain[pieces[0].start : pieces[-1].stop] = number
        for piece in pieces:
            offset[piece.start : piece.stop] = np.arange(piece.stop - piece.start)
    return chain, offset


def _ordinals(*columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many earlier events are equal to each in all columns."""
    order = np.lexsort(columns)
    table = np.stack(columns)[:, order]
    starts = np.concatenate(([True], (np.diff(table, axis=1) != 0).any(axis=0)))
    places = np.arange(len(order))
    ordinals = np.empty(len(order), dtype=np.int64)
    ordinals[order] = places - np.maximum.accumulate(np.where(starts, places, 0))
    return ordinals


def _points(recording: Recording) -> NDArray[np.int64]:
    """Return the events before which something was marked, and what, sorted by event."""
    found = [
        np.stack([recording.marks, np.full(len(recording.marks), -1)]),
        np.stack([recording.cache_flushes, np.full(len(recording.cache_flushes), -2)]),
    ]
    points = np.concatenate(found, axis=1)
    return points[:, np.argsort(points[0], kind="stable")]


def _within(points: NDArray[np.int64], piece: Piece) -> list[list[int]]:
    """List the points that come right before events of the piece."""
    low, high = np.searchsorted(points[0], [piece.start, piece.stop])
    inside = points[:, low:high].copy()
    inside[0] -= piece.start
    return inside.tolist()  # type: ignore[no-any-return]  # numpy's tolist is untyped


def _work(costs: tuple[OpCost, ...], piece: Piece) -> list[tuple[object, ...]]:
    return [
        (cost.event - piece.start, cost.op, *cost[3:])
        for cost in costs
        if piece.start <= cost.event < piece.stop
    ]
