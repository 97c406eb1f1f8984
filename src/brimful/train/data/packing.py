"""Which samples share a row: best fit, the longest first. Plain arithmetic on lengths."""

import bisect
from collections.abc import Sequence


def pack(lengths: Sequence[int], *, capacity: int) -> list[list[int]]:
    """Lay items into as few rows as best-fit-decreasing finds; at most 11/9 of the fewest + 1.

    ``lengths``: of each item; none is longer than ``capacity``. Returns for each row its items;
    every item is in one row.

    Source:
        Johnson 1974, "Fast algorithms for bin packing".
    """
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # room and row, by room
    for item in sorted(range(len(lengths)), key=lambda item: -lengths[item]):
        place = bisect.bisect_left(free, (lengths[item], -1))
        if place == len(free):
            rows.append([])
            room, row = capacity, len(rows) - 1
        else:
            room, row = free.pop(place)
        rows[row].append(item)
        bisect.insort(free, (room - lengths[item], row))
    return rows
