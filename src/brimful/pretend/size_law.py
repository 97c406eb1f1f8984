"""What a script would record with another value of an argument, from runs with two or three.

A script that is run with another batch mostly asks for the same memory in the same order: each
request is so many bytes more for each one more (a quadratic, where a side of a square grows). So
what the allocator would do with any value is a replay of sizes that are computed, and no run.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from brimful.pretend.recording import Recording

MOST_RUNS = 3
"""Of which sizes are computed: through three points goes a quadratic."""
_LOOKED_AHEAD = 64
"""Requests that the one recording may have and the other not, in a row."""
_LEAST_ALIKE = 0.98
"""Share of requests that two recordings must have in common."""
_NEAR = 0.002
"""Of a size, by which it may miss the straight line, as tables of kernels round."""

Law = Callable[[int], Recording]


def law_of(recordings: Mapping[int, Recording], *, near: int) -> Law | None:
    """Return what is recorded with each value; None: the recordings are not of one kind.

    ``recordings``: by the value that a script was run with, two at least. ``near``: the value about
    which it is asked: the nearest recordings are taken.
    """
    values = sorted(recordings, key=lambda value: (abs(value - near), value))[:MOST_RUNS]
    base = recordings[values[0]]
    columns = [base.num_bytes.astype(np.float64)]
    taken = values[:1]
    is_known = np.ones(len(base.num_bytes), dtype=bool)
    for value in values[1:]:
        rows = _rows_alike(base, recordings[value])
        if rows is None:
            continue
        is_known &= rows >= 0
        sizes = recordings[value].num_bytes[np.maximum(rows, 0)]
        columns.append(np.where(rows >= 0, sizes, base.num_bytes).astype(np.float64))
        taken.append(value)
    if len(taken) == 1:
        return None
    return _through(base, taken, columns, is_known)


def _through(
    base: Recording, values: list[int], columns: list[NDArray[np.float64]], known: NDArray[np.bool_]
) -> Law:
    """Lay a straight line through two points of each size, a quadratic through three."""
    first, second = values[:2]
    slope = np.where(known, (columns[1] - columns[0]) / (second - first), 0.0)
    bend = np.zeros_like(slope)
    if len(values) > 2:  # noqa: PLR2004 - a line has two
        third = values[2]
        missed = columns[2] - (columns[0] + slope * (third - first))
        is_bent = known & (np.abs(missed) > _NEAR * np.maximum(columns[2], 1.0))
        bend = np.where(is_bent, missed / ((third - first) * (third - second)), 0.0)

    def recording_at(value: int) -> Recording:
        far = value - first
        sizes = columns[0] + slope * far + bend * far * (value - second)
        return replace(base, num_bytes=np.maximum(np.ceil(sizes), 1.0).astype(np.int64))

    return recording_at


def _rows_alike(base: Recording, other: Recording) -> NDArray[np.int64] | None:
    """Return for each request of a recording its place in another, -1 where that has none."""
    own, others = _keys(base), _keys(other)
    number: dict[tuple[str, ...], int] = {}
    left = [number.setdefault(key, len(number)) for key in own]
    right = [number.setdefault(key, len(number)) for key in others]
    if left == right:
        return np.arange(len(left))
    rows = np.full(len(left), -1, dtype=np.int64)
    i = j = num = 0
    while i < len(left) and j < len(right):
        if left[i] == right[j]:
            rows[i] = j
            i, j, num = i + 1, j + 1, num + 1
            continue
        i, j = _next_alike(left, right, i, j)
    return rows if num >= _LEAST_ALIKE * max(len(left), len(right)) else None


def _next_alike(left: list[int], right: list[int], i: int, j: int) -> tuple[int, int]:
    """Return the places from which two lists are alike again, as few further on as may be."""
    for skipped in range(1, 2 * _LOOKED_AHEAD):
        for more in range(skipped + 1):
            at, to = i + more, j + skipped - more
            if at < len(left) and to < len(right) and left[at] == right[to]:
                return at, to
    return len(left), len(right)


def _keys(recording: Recording) -> list[tuple[str, ...]]:
    """Return what says of each request which one it is, but for its size."""
    lines = [line.rpartition("/")[2] for line in recording.lines]  # a notebook's folder is new
    columns = (
        (recording.op, recording.ops), (recording.line, lines),
        (recording.phase, recording.phases), (recording.owner, recording.owners),
    )  # fmt: skip
    words = ([names[i] for i in column.tolist()] for column, names in columns)
    return list(zip(*words, strict=True))
