"""Which repeated unit each event of a tape belongs to, and in which chains the units follow.

A unit is what repeats: one round of a model's pattern of blocks, one micro-batch, one step. An
allocation belongs to the unit of its owner. A free belongs to the unit that was running when it
happened, or, where none was, to that of what it frees: dropping a list of gradients walks through
the units as a forward pass does. Knows nothing of how units are copied.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from brimful.errors import UnsupportedError
from brimful.pretend.recording import Recording

NO_UNIT = -1


class NotPeriodicError(UnsupportedError):
    """A tape that cannot be unrolled, with the reason; trace it in full."""


class UnlikeBlocksError(NotPeriodicError):
    """Blocks that should stand for each other are not alike; trace all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """How the blocks of one stack repeat.

    Attributes:
        stack: Path of the module list, ``model.layers``.
        num_prefix: Blocks before the first unit, of kinds of their own.
        period: Blocks in one unit; what is left after the last whole unit stands by itself.
        num_suffix: Blocks behind the last unit, of kinds of their own too.
    """

    stack: str
    num_prefix: int
    period: int
    num_suffix: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of events of one unit.

    Attributes:
        unit: Which.
        start: Its first event.
        stop: The event after its last.
    """

    unit: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """The units of a recording.

    Attributes:
        count: How many there are.
        of_event: Unit of each event, ``NO_UNIT`` if none.
        of_row: Unit of each row.
        chains: Pieces that follow each other, unit by unit, upwards or downwards.
    """

    count: int
    of_event: NDArray[np.int64]
    of_row: NDArray[np.int64]
    chains: tuple[tuple[Piece, ...], ...]


def block_of(owner: str, stack: str) -> int:
    """Return the number of the block of ``stack`` that a path lies in, -1 if in none."""
    number = owner.removeprefix(f"{stack}.").partition(".")[0] if owner.startswith(stack) else ""
    return int(number) if number.isdecimal() else -1


def count_blocks(recording: Recording, stack: str) -> int:
    """Return how many blocks of a stack own something."""
    return max((block_of(owner, stack) for owner in recording.owners), default=-1) + 1


def count_units(recording: Recording, pattern: Pattern) -> int:
    """Return how many whole units of blocks own something."""
    others = pattern.num_prefix + pattern.num_suffix
    return (count_blocks(recording, pattern.stack) - others) // pattern.period


def units_of_blocks(recording: Recording, pattern: Pattern, *, adopted: Mapping[int, int]) -> Units:
    """Find the units of a stack of blocks.

    ``adopted``: unit of rows that belong to one although no block owns them.
    """
    count = count_units(recording, pattern)
    block = np.array([block_of(owner, pattern.stack) for owner in recording.owners] or [-1])
    unit = (block - pattern.num_prefix) // pattern.period
    unit[(block < pattern.num_prefix) | (unit >= count)] = NO_UNIT
    of_row = unit[recording.owner]
    of_row[list(adopted)] = list(adopted.values())
    return units_of_rows(recording, of_row, count)


def units_of_rows(
    recording: Recording, unit: NDArray[np.int64], count: int, *, are_small: bool = False
) -> Units:
    """Find units, given which of them rows are known to belong to.

    ``unit``: of each row, ``NO_UNIT`` where nobody says. ``are_small``: whether what drops a graph
    lets go of a unit's and its neighbour's by turns.
    """
    phase = phase_of_events(recording)
    births = recording.events >= 0
    label = np.full(len(births), NO_UNIT)
    label[births] = unit[recording.events[births]]
    # Give allocations of nobody, between those of one unit or of neighbours, to the unit.
    known = np.flatnonzero(births & (label != NO_UNIT))
    left, right = known[:-1], known[1:]
    low, high = label[left], label[right]
    is_inner = (low != high) | ((low > 0) & (low < count - 1))
    is_near = (np.abs(low - high) <= 1) & (phase[left] == phase[right]) & (right > left + 1)
    for first, last in zip(left[is_inner & is_near], right[is_inner & is_near], strict=True):
        gap = label[first + 1 : last]
        gap[births[first + 1 : last]] = label[first]
    running = _running(label, phase, births)
    units = _finish(recording, label, phase, running, count)
    if not are_small:
        return units
    is_dropped = ~births & (running == NO_UNIT) & (label != NO_UNIT)
    # Let frees that go through units by turns go through them in one direction. `label`: units of
    # events; some are made those of a neighbour. `is_dropped`: of each event whether it frees what
    # no running unit does.
    edges = np.flatnonzero(np.diff(np.concatenate(([False], is_dropped, [False])).astype(int)))
    for start, stop in edges.reshape(-1, 2).tolist():
        along = label[start:stop]
        way = np.minimum if along[0] >= along[-1] else np.maximum
        straight = way.accumulate(along)
        if np.abs(straight - along).max() <= 1:
            label[start:stop] = straight
    return replace(units, chains=tuple(_chains(_pieces(label, phase))))


def phase_of_events(recording: Recording) -> NDArray[np.int64]:
    """Return the phase in which each event happened."""
    events = np.arange(len(recording.events))
    return np.searchsorted(recording.phase_starts, events, side="right") - 1


def _finish(
    recording: Recording,
    label: NDArray[np.int64],
    phase: NDArray[np.int64],
    running: NDArray[np.int64],
    count: int,
) -> Units:
    """Label the frees, given the unit that is running at each event, and find the chains."""
    of_row = label[recording.born]
    frees = np.flatnonzero(recording.events < 0)
    running = running[frees]
    freed = of_row[~recording.events[frees]]
    is_near = (freed == NO_UNIT) | (np.abs(freed - running) <= 1)
    label[frees] = np.where((running != NO_UNIT) & is_near, running, freed)
    chains = tuple(_chains(_pieces(label, phase)))
    return Units(count=count, of_event=label, of_row=of_row, chains=chains)


def _running(
    label: NDArray[np.int64], phase: NDArray[np.int64], births: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the unit of the allocation before each event, if the next one is of it or near it.

    After the last unit, or where a list of many units' tensors is dropped, none is running.
    """
    places = np.arange(len(label))
    last = np.maximum.accumulate(np.where(births, places, 0))
    following = np.minimum.accumulate(np.where(births, places, len(label) - 1)[::-1])[::-1]
    together = (phase[last] == phase) & (phase[following] == phase)
    is_near = np.abs(label[last] - label[following]) <= 1
    is_inner = (label[last] != NO_UNIT) & (label[following] != NO_UNIT) & births[last]
    return np.where(together & is_near & is_inner & births[following], label[last], NO_UNIT)


def _pieces(label: NDArray[np.int64], phase: NDArray[np.int64]) -> list[Piece]:
    """Cut the events where the unit or the phase changes, leaving out what has no unit."""
    changes = (np.diff(label) != 0) | (np.diff(phase) != 0)
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(label)]
    return [
        Piece(unit=int(label[start]), start=start, stop=stop)
        for start, stop in pairwise(edges)
        if start < stop and label[start] != NO_UNIT
    ]


def _chains(pieces: list[Piece]) -> list[tuple[Piece, ...]]:
    """Join pieces that touch and whose units go on in one direction."""
    chains: list[list[Piece]] = []
    for piece in pieces:
        if chains and _goes_on(chains[-1], piece):
            chains[-1].append(piece)
        else:
            chains.append([piece])
    return [tuple(chain) for chain in chains]


def _goes_on(chain: list[Piece], piece: Piece) -> bool:
    step = piece.unit - chain[-1].unit
    if piece.start != chain[-1].stop or abs(step) != 1:
        return False
    return len(chain) == 1 or step == chain[-1].unit - chain[-2].unit
