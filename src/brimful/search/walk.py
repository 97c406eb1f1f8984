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
    order = [int(row) for row in space.order() if space.table.fits[row]]
    passed: list[int] = []
    while order:
        looked = look(order[0], len(passed))
        if looked is None:
            return
        if looked.fits:
            break
        gone = _beyond(space, order[0], looked.excess_bytes)
        passed += [row for row in order[1:] if gone[row]]
        order = [row for row in order[1:] if not gone[row]]
    _look_again(space, passed, order[0] if order else None, look)


def _look_again(space: Space, passed: list[int], best: int | None, look: Look) -> None:
    """Look at what was passed over and is better than what fits: the middle of it, again and again.

    Where nothing fits so far the one that needs least comes first.
    """
    place = {int(row): at for at, row in enumerate(space.order())}
    peaks, step_s = space.table.peak_bytes, space.table.step_s
    num_passed = len(passed)
    if best is not None:
        passed = [row for row in passed if _is_better(place, step_s, row, best)]
    while passed:
        passed.sort(key=place.__getitem__)
        row = min(passed, key=peaks.__getitem__) if best is None else passed[len(passed) // 2]
        num_passed -= 1
        looked = look(row, num_passed)
        if looked is None:
            return
        if looked.fits:
            best = row
            passed = [other for other in passed if _is_better(place, step_s, other, best)]
        else:
            gone = _beyond(space, row, 0)
            passed = [other for other in passed if not gone[other]]


def _is_better(place: dict[int, int], step_s: NDArray[np.float64], row: int, best: int) -> bool:
    """Whether a row comes before another one and is faster by what is worth a look."""
    return place[row] < place[best] and not step_s[row] > step_s[best] / (1 + WORTH)


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
    order = space.order()
    return np.isin(np.arange(len(order)), order[: order.tolist().index(row)])
