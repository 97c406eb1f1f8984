"""Why a plan won: the runners-up, and the rejected with their shortfall."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brimful.search.record import SEARCH_SCHEMA, Considered, Rung, SearchRecord
from brimful.search.table import Table, pareto
from brimful.units import format_bytes, format_signed_percent
from brimful.values.strategy import Strategy

NUM_RUNNERS_UP = 6
NUM_REJECTED = 6
NUM_FRONTIER = 20


def record(
    table: Table,
    order: NDArray[np.int64],
    *,
    rung: Rung,
    limit_bytes: int,
    strategy: Callable[[int], Strategy],
) -> SearchRecord:
    """Pick the rows worth showing out of a ranked table.

    Runners-up are the best of each other degree, stage of ZeRO and way of cutting the batch and the
    loss, so that they differ in kind; rejected are the fastest that do not fit, one per way. Of the
    few strategies that were simulated, kinds of checkpointing are ways of their own.

    ``order``: its rows, best first, those that fit before those that do not.
    """
    fitting = order[table.fits[order]]
    misses = np.flatnonzero(~table.fits)
    by_time = misses[np.lexsort((table.peak_bytes[misses], np.nan_to_num(table.step_s[misses])))]
    best = int(order[0])
    # Where nothing fits, the nearest misses help more than the fastest ones.
    candidates = by_time if len(fitting) else order
    columns: list[NDArray[Any]] = [
        table.tp, table.zero, table.micro_batch, table.loss_chunks > 1
    ]  # fmt: skip
    if rung == "simulated":
        spelled = map(strategy, range(len(order)))
        kinds = [one.activation_checkpointing.partition(":")[0] for one in spelled]
        columns.append(np.unique(kinds, return_inverse=True)[1])
    ways = _numbered(columns)
    shown = [best, *_one_per_way(fitting, NUM_RUNNERS_UP, ways=ways, skip=best)]
    rejected = _one_per_way(candidates, NUM_REJECTED, ways=ways, skip=best)
    rows = (_considered(table, row, best, limit_bytes, strategy) for row in [*shown, *rejected])
    return SearchRecord(
        schema=SEARCH_SCHEMA,
        rung=rung,
        rows=tuple(rows),
        num_considered=len(order),
        num_fitting=len(fitting),
    )


def frontier(
    table: Table, *, best: int, limit_bytes: int, strategy: Callable[[int], Strategy]
) -> tuple[Considered, ...]:
    """Lay out the Pareto set of time and peak, at most ``NUM_FRONTIER`` of it, ends included.

    ``best``: the row of the plan, with which notes compare.
    """
    rows = pareto(table)
    kept = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), NUM_FRONTIER)).round())
    return tuple(
        _considered(table, int(row), best, limit_bytes, strategy)
        for row in rows[kept.astype(np.int64)]
    )


def _considered(
    table: Table, row: int, best: int, limit_bytes: int, strategy: Callable[[int], Strategy]
) -> Considered:
    return Considered(
        strategy=strategy(row),
        peak_bytes=int(table.peak_bytes[row]),
        step_s=None if np.isnan(table.step_s[row]) else float(table.step_s[row]),
        fits=bool(table.fits[row]),
        note=_note(table, row, best, limit_bytes),
    )


def _numbered(columns: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """Return a number per row, the same for rows that are alike in every column."""
    number = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        number = number * (int(column.max()) + 1) + column
    return number


def _one_per_way(
    rows: NDArray[np.int64], num: int, *, ways: NDArray[np.int64], skip: int
) -> list[int]:
    """Keep the first row of each way to cut batch and loss, the way of ``skip`` taken."""
    kept: list[int] = []
    left = rows[ways[rows] != ways[skip]]
    while len(left) and len(kept) < num:
        kept.append(int(left[0]))
        left = left[ways[left] != ways[kept[-1]]]
    return kept


def _note(table: Table, row: int, best: int, limit_bytes: int) -> str:
    peak, fits = table.peak_bytes[row], table.fits[row]
    if row == best:
        return "the best that fits" if fits else "nearest to fitting"
    if not fits:
        parts = []
        if peak <= limit_bytes:
            parts.append("what is free lies in pieces")
        if table.step_s[row] < table.step_s[best]:
            parts.append(f"{format_signed_percent(table.step_s[row], table.step_s[best])} time")
        return ", ".join(parts)
    saved = format_bytes(abs(peak - table.peak_bytes[best]))
    words = f"{saved} {'less' if peak < table.peak_bytes[best] else 'more'}"
    if np.isnan(table.step_s[row]):
        return words
    return f"{format_signed_percent(table.step_s[row], table.step_s[best])} time, {words}"
