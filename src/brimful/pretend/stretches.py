"""Stretches of a recording that follow each other and are alike, but for sizes that grow evenly.

Each has the same events in the same order: what the one allocates the next allocates too, so many
elements longer, and what the one frees of itself or the one before it the next does. Then any
number of further ones can be told from two, as ``unroll.py`` does with a finished tape, but while
it is recorded: whoever asks for memory afterwards is answered as if all of them had run.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from brimful.pretend.recording_builder import Column, RecordingBuilder
from brimful.pretend.telling import UnlikeStatesError

_NUMBERS = NDArray[np.int64]
_GROWING = (Column.NUM_BYTES, Column.BORN, Column.SHAPE)
"""What may differ from one stretch to the next."""


class Edge(NamedTuple):
    """Where one stretch ends and the next begins.

    Attributes:
        event: Events before it.
        row: Allocations before it.
        others: What else a program may do that no copy could: ``interruptions``.
    """

    event: int
    row: int
    others: tuple[int, ...]

    @classmethod
    def of(cls, builder: RecordingBuilder) -> Self:
        """Return the place that a recording has come to."""
        return cls(builder.spot().event, builder.num_rows, builder.interruptions())


class _Grown(NamedTuple):
    """How an allocation grows.

    Attributes:
        shape: In the last stretch that was looked at.
        more: By which each dimension of the next one is larger.
        dtype: Of its elements.
        num_bytes: Of it.
        more_bytes: By which the next one is larger; None: as its shape says.
    """

    shape: tuple[int, ...]
    more: tuple[int, ...]
    dtype: Any
    num_bytes: int
    more_bytes: int | None

    def at(self, num: int) -> tuple[int, tuple[int, ...]]:
        """Return bytes and shape so many stretches on."""
        shape = tuple(x + num * y for x, y in zip(self.shape, self.more, strict=True))
        if self.more_bytes is None:
            return prod(shape) * self.dtype.itemsize, shape
        return self.num_bytes + num * self.more_bytes, shape


class Law(NamedTuple):
    """What further stretches do.

    Attributes:
        start: Where the last one that was looked at begins.
        num_rows: Allocations of each.
        events: Of that one.
        table: Its columns, a line for each allocation.
        items: Classes of these.
        grown: What grows, each with the places of the allocations that do so.
    """

    start: Edge
    num_rows: int
    events: _NUMBERS
    table: _NUMBERS
    items: _NUMBERS
    grown: tuple[tuple[_Grown, _NUMBERS], ...]

    def events_at(self, num: int) -> _NUMBERS:
        """Return the events so many stretches on."""
        return _shifted(self.events, num * self.num_rows)

    def table_at(self, num: int, builder: RecordingBuilder) -> _NUMBERS:
        """Return the columns so many stretches on, but for when anything was made."""
        table = self.table.copy()
        for grown, places in self.grown:
            num_bytes, shape = grown.at(num)
            table[places, Column.NUM_BYTES] = num_bytes
            table[places, Column.SHAPE] = builder.shape_number(torch.Size(shape), grown.dtype)
        return table


def law_of(builder: RecordingBuilder, edges: Sequence[Edge]) -> Law | None:
    """Return what further stretches do; None: the last two are not alike.

    ``edges``: three, of two stretches.
    """
    first, second, third = edges
    num_rows = third.row - second.row
    before = builder.signed_events(first.event, second.event)
    events = builder.signed_events(second.event, third.event)
    earlier, table = (builder.table(a.row, b.row) for a, b in ((first, second), (second, third)))
    items = builder.item_numbers(second.row, third.row)
    stays = np.setdiff1d(np.arange(len(Column)), _GROWING)
    is_alike = (
        not builder.shares_blocks
        and first.others == third.others
        and np.array_equal(events, _shifted(before, num_rows))
        # What is let go of is no older: of that there would be no more.
        and np.where(events < 0, ~events, events).min(initial=first.row) >= first.row
        and np.array_equal(earlier[:, stays], table[:, stays])
        and np.array_equal(builder.item_numbers(first.row, second.row), items)
    )
    if not is_alike:
        return None
    try:
        grown = tuple(_growth(builder, earlier, table))
    except ValueError:
        return None
    return Law(second, num_rows, events, table, items, grown)


def holds(law: Law, num: int, builder: RecordingBuilder, edges: Sequence[Edge]) -> bool:
    """Whether a stretch did what a law says of one so many stretches on.

    ``edges``: where it begins and ends.
    """
    start, stop = edges
    events = builder.signed_events(start.event, stop.event)
    stays = [column for column in Column if column is not Column.BORN]
    return (
        start.others == stop.others == law.start.others
        and np.array_equal(events, law.events_at(num))
        and np.array_equal(
            builder.table(start.row, stop.row)[:, stays], law.table_at(num, builder)[:, stays]
        )
    )


class Moves(NamedTuple):
    """What comes of allocations that are alive where further stretches are put.

    Attributes:
        law: Of these stretches.
        num: How many they are.
        kept: Allocations of the last one that stay, beside which each further one makes its own.
        carried: Allocations of the last one that give way to those of the further ones in turn.
    """

    law: Law
    num: int
    kept: frozenset[int]
    carried: frozenset[int]

    def row(self, row: int, num: int) -> int:
        """Return the allocation that stands for another so many stretches on."""
        return row + num * self.law.num_rows

    def put(self, builder: RecordingBuilder) -> None:
        """Record the further stretches."""
        law, numbers = self.law, range(1, self.num + 1)
        builder.extend(
            np.concatenate([law.events_at(num) for num in numbers]),
            np.concatenate([law.table_at(num, builder) for num in numbers]),
            np.tile(law.items, self.num),
        )


def moves_of(law: Law, builder: RecordingBuilder, num: int) -> Moves:
    """Return what comes of what is alive, so many stretches on.

    What a stretch keeps for good is as large as what the one before it kept. Raises
    UnlikeStatesError: else nobody knows it.
    """
    start, stop = law.start.row, law.start.row + law.num_rows
    before = builder.are_alive(start - law.num_rows, start)
    now = builder.are_alive(start, stop)
    kept = np.flatnonzero(now & before)
    growing = [places for _, places in law.grown]
    if (before & ~now).any() or np.isin(kept, np.concatenate([kept[:0], *growing])).any():
        raise UnlikeStatesError
    carried = np.flatnonzero(now & ~before)
    rows = (frozenset((start + each).tolist()) for each in (kept, carried))
    return Moves(law, num, *rows)


def _shifted(events: _NUMBERS, num_rows: int) -> _NUMBERS:
    return np.where(events >= 0, events + num_rows, events - num_rows)


def _growth(
    builder: RecordingBuilder, before: _NUMBERS, after: _NUMBERS
) -> Iterator[tuple[_Grown, _NUMBERS]]:
    """Yield what grows. Raises ValueError: nobody knows how."""
    columns = [Column.NUM_BYTES, Column.SHAPE]
    pairs = np.concatenate([before[:, columns], after[:, columns]], axis=1)
    changed = np.flatnonzero((pairs[:, :2] != pairs[:, 2:]).any(axis=1))
    kinds, kind = np.unique(pairs[changed], axis=0, return_inverse=True)
    for place, (bytes_before, shape_before, num_bytes, shape_now) in enumerate(kinds.tolist()):
        (shape, dtype), (last, last_dtype) = map(builder.shape_of, (shape_before, shape_now))
        if dtype != last_dtype or len(shape) != len(last):
            raise ValueError
        more = tuple(y - x for x, y in zip(shape, last, strict=True))
        sizes = [prod(each) * dtype.itemsize for each in (shape, last)]
        is_plain = sizes == [bytes_before, num_bytes]
        if not is_plain and sum(map(bool, more)) > 1:
            raise ValueError
        more_bytes = None if is_plain else num_bytes - bytes_before
        grown = _Grown(tuple(last), more, dtype, num_bytes, more_bytes)
        yield grown, changed[np.ravel(kind) == place]
