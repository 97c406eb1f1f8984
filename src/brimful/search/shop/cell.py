"""One cell of a market, a kind of GPU and a number of them: the fastest plan that fits.

Says what ``solve`` says of the same devices, and looks at as little of the space as that takes.
A grid is left out where even its leanest strategy holds more than there is, or where the least
time that it could take is over what is needed. Both are bounds from below, none is a guess.
"""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from brimful.cost.comm import overlapped_seconds
from brimful.cost.estimate import tensor_limit_bytes
from brimful.search.grid import evaluate, least_of, least_peaks, peaks_of
from brimful.search.grid_seconds import seconds_of
from brimful.search.grid_values import Grid, Search
from brimful.search.shop.bound import Least, least_of_grid
from brimful.search.table import TIE, Table, joined, rank, strategy_at
from brimful.values.job import Job
from brimful.values.strategy import Attention, Strategy, default_reference

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Found(NamedTuple):
    """The fastest that fits.

    Attributes:
        strategy: How.
        peak_bytes: Its peak.
        step_s: Seconds of its step.
        host_bytes: What a node's host holds of what is offloaded, and what training needs beside.
    """

    strategy: Strategy
    peak_bytes: int
    step_s: float
    host_bytes: int = 0


def fastest(search: Search, space: Sequence[Grid], least: Least, *, bar_s: float) -> Found | None:
    """Find the fastest strategy that fits and is faster than ``bar_s``.

    ``search``: what for, and what grids of other kinds of GPU share with it. ``least``: seconds of
    one device of the kind, at least (``bound.py``). ``bar_s``: seconds of a step; infinity: the
    fastest, whatever it takes. Returns what ``solve`` would choose; None where it does not fit or
    is not faster than the bar.
    """
    bounds = [(_bound(search, grid, least), i, grid) for i, grid in enumerate(space)]
    best_s, tables = bar_s, []
    for least_s, _, grid in sorted(bounds, key=lambda bound: bound[:2]):
        if not least_s < _tied(best_s):
            break
        table = _below(search, grid, _tied(best_s))
        if table is not None:
            tables.append(table)
            best_s = min(best_s, float(np.min(table.step_s)))
    found = best_of(search.job, joined(tables), search.attention) if tables else None
    return found if found is not None and found.step_s < bar_s else None


def within(search: Search, space: Sequence[Grid], least: Least, *, bar_s: float) -> Table:
    """Predict every strategy that fits and is faster than ``bar_s``, or as good as that."""
    near = (grid for grid in space if _bound(search, grid, least) < bar_s)
    may_fit = (grid for grid in near if _may_fit(search, grid).any())
    found = joined([_fitting(evaluate(search, grid)) for grid in may_fit])
    return _of_rows(found, found.step_s < _tied(bar_s))


def _bound(search: Search, grid: Grid, least: Least) -> float:
    """Return what no strategy of a grid that may fit is faster than; infinity: none may."""
    each = least_of(search, grid)
    compute_s = least_of_grid(least, grid, search.cluster.num_devices)
    whole = overlapped_seconds(np.asarray(compute_s), each.sent_s)
    fits = (each.kept_bytes <= tensor_limit_bytes(search.cluster)) & ~np.isnan(whole)
    return float(np.min(whole[fits], initial=np.inf))


def _tied(step_s: float) -> float:
    """Return the time within which the smaller peak may win: two steps of ``TIE``."""
    return step_s * (1 + TIE) ** 2


def _below(search: Search, grid: Grid, bar_s: float) -> Table | None:
    """Evaluate a grid as far as something of it may be faster than a bar."""
    seconds = seconds_of(search, grid)
    if not np.any((seconds < bar_s) & _may_fit(search, grid)):
        return None
    table = _fitting(evaluate(search, grid, seconds))
    return table if len(table.step_s) else None


def _may_fit(search: Search, grid: Grid) -> "NDArray[np.bool_]":
    """Tell what of a grid may fit, before it is evaluated: [batches, counts or 1, shards]."""
    limit_bytes = tensor_limit_bytes(search.cluster)
    may_fit: NDArray[np.bool_] = least_peaks(search, grid) <= limit_bytes
    return may_fit


def _fitting(table: Table) -> Table:
    return _of_rows(table, table.fits & ~np.isnan(table.step_s))


def _of_rows(table: Table, keep: "NDArray[np.bool_]") -> Table:
    columns: Iterable[NDArray[Any]] = (column[keep] for column in table)
    return Table(*columns)


class Leanest:
    """The strategy with the smallest peak of live tensors, looked for as far as anybody asks.

    What stays is looked at first: a grid that keeps more than the best so far has none.

    Attributes:
        strategy: The best so far; None: there is none yet.
        peak_bytes: Its peak.
    """

    def __init__(self, search: Search, space: Sequence[Grid]) -> None:
        """Begin with nothing looked at."""
        self.strategy: Strategy | None = None
        self.peak_bytes = math.inf
        self._search, self._space = search, space
        kept = [float(np.min(least_of(search, grid).kept_bytes)) for grid in space]
        recomputed = [-int(grid.num_blocks.max()) for grid in space]  # the most first
        self._left = iter(sorted(zip(kept, recomputed, range(len(space)), strict=True)))

    def below(self, limit_bytes: float) -> bool:
        """Look until something is at or below a limit; whether anything is."""
        while self.peak_bytes > limit_bytes:
            kept_bytes, _, place = next(self._left, (math.inf, 0, -1))
            if kept_bytes >= self.peak_bytes:
                self._left = iter(())
                return False
            self._look(self._space[place])
        return True

    def _look(self, grid: Grid) -> None:
        if float(np.min(least_peaks(self._search, grid))) >= self.peak_bytes:
            return
        least_bytes = float(np.min(peaks_of(self._search, grid)))
        if least_bytes >= self.peak_bytes:
            return
        job, table = self._search.job, evaluate(self._search, grid)
        row = int(np.argmin(table.peak_bytes))
        attention, reference = self._search.attention, default_reference(job)
        self.strategy = strategy_at(job, table, row, attention, reference)
        self.peak_bytes = least_bytes


def best_of(job: Job, table: Table, attention: Attention) -> Found | None:
    """Return the first of a table as ``solve`` ranks it, where it fits and its time is known."""
    if not len(table.step_s):
        return None
    row = int(rank(table, objective="time")[0])
    if not table.fits[row] or np.isnan(table.step_s[row]):
        return None
    strategy = strategy_at(job, table, row, attention, default_reference(job))
    return Found(strategy, int(table.peak_bytes[row]), float(table.step_s[row]))
