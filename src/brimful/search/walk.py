"""Going through strategies, best first, until one holds: by replays of predictions or simulations.

Looking at one takes a tenth of a second or ten, so that what one of them lacks tells which others
need no look. What the allocator holds beyond live bytes is much the same wherever a job is spread
and cut alike, and grows with the micro-batch: of 8B on eight 4090s it is within 1 % of the peak for
one way of spreading, and 3 to 8 GiB for different ones; Qwen3-30B-A3B on eight H100s lacks 17.8 GiB
in micro-batches of 8 and 4.2 in those of 4, with as many live bytes. So a strategy is expected to
lack what one that is spread alike, with no larger micro-batch, lacked, and the difference of their
live bytes. That is likely and not certain: once one holds, what was expected not to, is faster by
what is worth it and near enough, is looked at too.

Where time, or the most looks, ends that before anything held, nothing is known of what takes less
(``roomiest``): whoever looks asks of it before saying that nothing fits.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.outside import room_of
from brimful.search.solve import Space

WORTH = 0.01
"""By how much faster a strategy has to be that was passed over, to be looked at after all."""
NEAR = 0.03
"""Share of its live bytes that a strategy may be expected to lack, and is looked at after all."""
NUM_LEANEST = 2
"""Strategies that recompute all, that are looked at where nothing else fits."""

Rows = NDArray[np.int64]


class Looked(NamedTuple):
    """What a look at a strategy said.

    Attributes:
        fits: Whether it holds, and nothing is ever given back.
        replayed: Counts what it would hold too much if nothing were given back, which takes a
            replay that whoever asks only whether it fits may not need.
    """

    fits: bool
    replayed: Callable[[], int]

    @property
    def excess_bytes(self) -> int:
        """What it would hold too much if nothing were given back."""
        return self.replayed()


Look = Callable[[int, int], Looked | None]
"""Look at a row, told how many are passed over so far; None ends the walk."""


def walk(space: Space, look: Look) -> "Expected":
    """Look at rows of a space, best first, until one fits; then at what was passed over."""
    seen = set[int]()

    def noted(row: int, num_passed: int) -> Looked | None:
        seen.add(row)
        return look(row, num_passed)

    led = lead(space, noted)
    if not led.is_ended and _look_again(space, led, noted):
        _look_at_leanest(space, seen, look)
    return led.expected


def roomiest(space: Space, seen: Collection[int]) -> int | None:
    """Return what takes least of what fits by live bytes; None: it was looked at, or none does."""
    order = _leanest_first(space, space.table.fits)
    return None if not len(order) or int(order[0]) in seen else int(order[0])


class Expected:
    """What strategies are expected to lack, by what was seen of others."""

    def __init__(self, space: Space) -> None:
        """Begin with what live bytes alone say; on a CPU they say nothing."""
        device, peaks = space.cluster.device, space.table.peak_bytes
        self._space = space
        self._least = np.full(len(peaks), -np.inf)
        if device.kernels == "cuda":
            self._least = peaks - float(room_of(device).firm_bytes)
        self._seen = np.full(len(peaks), np.inf)
        self._waiting: list[tuple[NDArray[np.bool_], int, Looked]] = []

    def learn(self, row: int, looked: Looked) -> None:
        """Expect of those that are spread alike what was seen of one; the least of all that was.

        Of smaller micro-batches nothing: what lies between their tensors is smaller too. By how
        much it does not fit is counted once one that is spread alike is asked for.
        """
        table = self._space.table
        alike = self._space.spread_alike(row) & (table.micro_batch >= table.micro_batch[row])
        self._waiting.append((alike, row, looked))

    def lacks(self, rows: Rows) -> NDArray[np.float64]:
        """Return how many bytes rows are expected to lack; 0 or less: they fit."""
        peaks, waiting = self._space.table.peak_bytes, self._waiting
        self._waiting = [each for each in waiting if not each[0][rows].any()]
        for alike, row, looked in waiting:
            if alike[rows].any():
                lacks = looked.excess_bytes + peaks - peaks[row]
                self._seen = np.where(alike, np.minimum(self._seen, lacks), self._seen)
        seen, least = self._seen[rows], self._least[rows]
        return np.where(np.isinf(seen), least, np.maximum(seen, least))


class Led(NamedTuple):
    """Where a walk came to.

    Attributes:
        best: The first row that fits; None: none does.
        passed: Rows before it that were passed over.
        expected: What is expected of these.
        is_ended: Whether a look ended it.
    """

    best: int | None
    passed: Rows
    expected: Expected
    is_ended: bool


def lead(space: Space, look: Look) -> Led:
    """Look at rows of a space, best first, until one fits; see ``walk``."""
    left, expected = space.order(), Expected(space)
    left = left[space.table.fits[left]]
    while len(likely := np.flatnonzero(expected.lacks(left) <= 0)):
        place = int(likely[0])
        row = int(left[place])
        looked = look(row, place)
        if looked is None:
            return Led(None, left[:place], expected, is_ended=True)
        if looked.fits:
            return Led(row, left[:place], expected, is_ended=False)
        expected.learn(row, looked)
        left = left[~_beyond(space, row)[left]]
    return Led(None, left, expected, is_ended=False)


def _look_again(space: Space, led: Led, look: Look) -> bool:
    """Look at what was passed over and is better than what fits, the likeliest first.

    Where nothing fits so far all of it is looked at, as long as that is to be.

    Returns whether nothing fits, and no look ended it.
    """
    places, peaks = _places(space), space.table.peak_bytes
    best, passed, expected = led.best, led.passed, led.expected
    if best is not None:
        passed = passed[_are_better(space, places, passed, best)]
    while len(passed):
        lacks = expected.lacks(passed)
        likely = np.flatnonzero(lacks <= 0)
        place = int(likely[0] if len(likely) else lacks.argmin())
        row = int(passed[place])
        if best is not None and lacks[place] > NEAR * peaks[row]:
            return False
        looked = look(row, len(passed) - 1)
        if looked is None:
            return False
        expected.learn(row, looked)
        if looked.fits:
            best = row
            passed = passed[_are_better(space, places, passed, best)]
        else:
            passed = passed[~_beyond(space, row)[passed]]
    return best is None


def _look_at_leanest(space: Space, seen: set[int], look: Look) -> None:
    """Look at what recomputes all, of one with as many live bytes as others: it caches less.

    Where updates have the peak it is the same for every number of recomputed blocks.
    """
    plain = space.table.fits & (space.table.recompute == 0)
    plain[list(seen)] = False
    order = _leanest_first(space, plain)
    for row in order[:NUM_LEANEST].tolist():
        looked = look(row, len(order) - 1)
        if looked is None or looked.fits:
            return


def _leanest_first(space: Space, which: NDArray[np.bool_]) -> Rows:
    """Order those of the smallest micro-batches that recompute most, what takes least first."""
    table, rows = space.table, np.flatnonzero(which)
    if not len(rows):
        return rows
    rows = rows[table.micro_batch[rows] == table.micro_batch[rows].min()]
    rows = rows[table.num_blocks[rows] == table.num_blocks[rows].max()]
    keys = table.step_s, table.recompute, table.peak_bytes  # the last one first
    ordered: Rows = rows[np.lexsort([key[rows] for key in keys])]
    return ordered


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


def _beyond(space: Space, row: int) -> NDArray[np.bool_]:
    """Tell which strategies hardly fit if one does not: [strategies], itself among them.

    Those that are spread, cut and recomputed in the same way, and take no less.
    """
    peaks = space.table.peak_bytes
    gone: NDArray[np.bool_] = space.table.fits & space.alike(row) & (peaks >= peaks[row])
    gone[row] = True
    return gone


def before_row(space: Space, row: int) -> NDArray[np.bool_]:
    """Tell which rows come before one: [strategies]."""
    places = _places(space)
    before: NDArray[np.bool_] = places < places[row]
    return before
