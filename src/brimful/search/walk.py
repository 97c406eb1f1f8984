"""Going through strategies, best first, until one holds: by replays of predictions or simulations.

Looking at one takes a tenth of a second or ten, so that what one of them lacks tells which others
need no look: those that are spread, cut and recomputed in the same way and need less by no more
than that. By their live bytes they would not fit either, which is likely and not certain; so what
was leapt over is looked at again where it is faster by what is worth it.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.search.solve import Space

WORTH = 0.01
"""By how much faster a strategy has to be that was passed over, to be looked at after all."""


Rows = NDArray[np.int64]


class Looked(NamedTuple):
    """What a look at a strategy said.

    Attributes:
        fits: Whether it holds, and nothing is ever given back.
        excess_bytes: What it would hold too much if nothing were given back.
    """

    fits: bool
    excess_bytes: int


Look = Callable[[int, int], Looked | None]
"""Look at a row, told how many are passed over so far; None ends the walk."""


def walk(space: Space, look: Look) -> None:
    """Look at rows of a space, best first, until one fits; then at what was passed over.

    Args:
        space: What was searched.
        look: Looks at one.
    """
    led = lead(space, look)
    if not led.is_ended:
        _look_again(space, led.passed, led.best, look)


class Led(NamedTuple):
    """Where a walk came to.

    Attributes:
        best: The first row that fits; None: none does.
        passed: Rows before it that were passed over and need less than what was looked at.
        is_ended: Whether a look ended it.
    """

    best: int | None
    passed: Rows
    is_ended: bool


def lead(space: Space, look: Look) -> Led:
    """Look at rows of a space, best first, until one fits; see ``walk``."""
    left = space.order()
    left = left[space.table.fits[left]]
    passed = left[:0]
    while len(left):
        row = int(left[0])
        looked = look(row, len(passed))
        if looked is None:
            return Led(None, passed, is_ended=True)
        if looked.fits:
            return Led(row, passed, is_ended=False)
        left = left[1:]
        left = left[~_beyond(space, row, 0)[left]]
        gone = _beyond(space, row, looked.excess_bytes)[left]
        passed, left = np.concatenate([passed, left[gone]]), left[~gone]
    return Led(None, passed, is_ended=False)


def _look_again(space: Space, passed: Rows, best: int | None, look: Look) -> None:
    """Look at what was passed over and is better than what fits: the middle of it, again and again.

    Where nothing fits so far the one that needs least comes first.
    """
    place, peaks = _places(space), space.table.peak_bytes
    num_passed = len(passed)
    passed = passed[np.argsort(place[passed])]
    if best is not None:
        passed = passed[_are_better(space, place, passed, best)]
    while len(passed):
        middle = len(passed) // 2
        row = int(passed[peaks[passed].argmin() if best is None else middle])
        num_passed -= 1
        looked = look(row, num_passed)
        if looked is None:
            return
        if looked.fits:
            best = row
            passed = passed[_are_better(space, place, passed, best)]
        else:
            passed = passed[~_beyond(space, row, 0)[passed]]


def _places(space: Space) -> Rows:
    """Return where every row comes in the order: [strategies]."""
    order = space.order()
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return places


def _are_better(space: Space, place: Rows, rows: Rows, best: int) -> NDArray[np.bool_]:
    """Tell which rows come before another one and are faster by what is worth a look: [rows]."""
    step_s = space.table.step_s
    better: NDArray[np.bool_] = (place[rows] < place[best]) & ~(
        step_s[rows] > step_s[best] / (1 + WORTH)
    )
    return better


def _beyond(space: Space, row: int, excess_bytes: int) -> NDArray[np.bool_]:
    """Tell which strategies hardly fit if one does not: [strategies], itself among them.

    Those that are spread, cut and recomputed in the same way, and take less by no more than that.
    """
    peaks = space.table.peak_bytes
    gone: NDArray[np.bool_] = (
        space.table.fits & space.alike(row) & (peaks >= peaks[row] - excess_bytes)
    )
    gone[row] = True
    return gone


def before_row(space: Space, row: int) -> NDArray[np.bool_]:
    """Tell which rows come before one: [strategies]."""
    places = _places(space)
    before: NDArray[np.bool_] = places < places[row]
    return before
