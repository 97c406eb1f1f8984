"""Summing up published runs beside their predictions."""

import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import combinations
from typing import NamedTuple, TypeVar

from brimful.published.compare import Compared
from brimful.published.rows import split_of
from brimful.published.scores import (
    MIN_SWEPT,
    NEAR,
    Coverage,
    Errors,
    Holds,
    Missing,
    Order,
    Scoreboard,
)
from brimful.values.plan import Band

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


class Group(NamedTuple):
    """What figures are summed up by."""

    family: str
    label: str
    has_bar: bool


class Pair(NamedTuple):
    """A published figure and the prediction of it, if there is one."""

    row: Compared
    published: float
    predicted: float | None


class Banded(NamedTuple):
    """A published figure and the band that is predicted for it."""

    row: Compared
    published: float
    band: Band


def scoreboard(rows: Sequence[Compared]) -> Scoreboard:
    """Sum up rows, those with a bar first."""
    rows = sorted(rows, key=lambda row: not row.has_bar)
    allocated = [(r, r.published_allocated_gib, r.predicted_allocated_gib) for r in rows]
    speeds = [(r, r.published_tokens_per_s, r.predicted_tokens_per_s) for r in rows]
    reserved = [(r, r.published_reserved_gib, r.predicted_reserved_gib) for r in rows]
    process = [(r, r.published_process_gib, r.predicted_process_gib) for r in rows]
    timed = [Pair(r, there, here) for r, there, here in speeds if there]
    return Scoreboard(
        num_runs=len(rows),
        num_predicted=sum(not row.reason for row in rows),
        memory=_errors(Pair(r, there, here) for r, there, here in allocated if there),
        bands=(
            *_coverage("reserved", [Banded(r, t, b) for r, t, b in reserved if t and b]),
            *_coverage("process", [Banded(r, t, b) for r, t, b in process if t and b]),
        ),
        speeds=_errors(timed),
        orders=_orders([pair for pair in timed if pair.predicted]),
        holds=_holds([row for row in rows if row.word]),
        missing=_missing(rows),
    )


def overall(rows: Sequence[Compared]) -> tuple[Errors, Errors]:
    """Sum up errors of peak allocated bytes and of tokens per second over all rows."""
    everything = Group("", "", has_bar=False)
    memory = [(r, r.published_allocated_gib, r.predicted_allocated_gib) for r in rows]
    speed = [(r, r.published_tokens_per_s, r.predicted_tokens_per_s) for r in rows]
    both = ([Pair(r, there, here) for r, there, here in each if there] for each in (memory, speed))
    first, second = (_sum_up(everything, pairs) for pairs in both)
    return first, second


def group_by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Collect items by a key, in the order in which keys first come."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def p90(sizes: Sequence[float]) -> float:
    """Return the smallest of sorted sizes that 90 % of them do not exceed."""
    return sizes[-(-9 * len(sizes) // 10) - 1]


def _group(row: Compared) -> Group:
    return Group(row.family, row.label, row.has_bar)


def _errors(pairs: Iterable[Pair]) -> tuple[Errors, ...]:
    groups = group_by(pairs, lambda pair: _group(pair.row))
    return tuple(_sum_up(group, members) for group, members in groups.items())


def _sum_up(group: Group, pairs: Sequence[Pair]) -> Errors:
    errors = {p.row.id: p.predicted / p.published - 1 for p in pairs if p.predicted}
    sizes = sorted(map(abs, errors.values()))
    worst_id = max(errors, key=lambda name: abs(errors[name]), default="")
    return Errors(
        **group._asdict(),
        num_runs=len(pairs),
        num_predicted=len(errors),
        median=statistics.median(errors.values()) if sizes else None,
        median_size=statistics.median(sizes) if sizes else None,
        p90_size=p90(sizes) if sizes else None,
        worst=errors.get(worst_id),
        worst_id=worst_id,
        near_share=sum(size <= NEAR for size in sizes) / len(sizes) if sizes else None,
    )


def _coverage(figure: str, banded: Sequence[Banded]) -> tuple[Coverage, ...]:
    groups = group_by(banded, lambda item: (_group(item.row), split_of(item.row.source)))
    return tuple(
        Coverage(
            **group._asdict(),
            figure=figure,
            split=split,
            num_figures=len(members),
            num_below=sum(item.published < item.band.low for item in members),
            num_above=sum(item.published > item.band.high for item in members),
            median_width=statistics.median(
                (item.band.high - item.band.low) / item.published for item in members
            ),
        )
        for (group, split), members in groups.items()
    )


def _orders(pairs: Iterable[Pair]) -> tuple[Order, ...]:
    sweeps = group_by(pairs, lambda pair: pair.row.sweep).values()
    swept = [sweep for sweep in sweeps if len(sweep) >= MIN_SWEPT]
    found = []
    for group, members in group_by(swept, lambda sweep: _group(sweep[0].row)).items():
        signs = [sign for sweep in members for sign in _signs(sweep)]
        found.append(
            Order(
                family=group.family,
                label=group.label,
                num_sweeps=len(members),
                num_pairs=len(signs),
                tau=sum(signs) / max(1, len(signs)),
            )
        )
    return tuple(found)


def _signs(sweep: Sequence[Pair]) -> list[int]:
    """Return 1 for every pair in the measured order, -1 for every other, 0 where predicted alike.

    Pairs that were measured equally fast have no order.
    """
    signs = []
    for one, other in combinations(sweep, 2):
        measured = one.published - other.published
        agrees = measured * ((one.predicted or 0) - (other.predicted or 0))
        if measured:
            signs.append((agrees > 0) - (agrees < 0))
    return signs


def _holds(rows: Sequence[Compared]) -> tuple[Holds, ...]:
    return tuple(
        Holds(
            **group._asdict(),
            num_runs=len(members),
            num_tight=sum(row.word == "tight" for row in members),
            no=tuple(row.id for row in members if row.word == "no"),
        )
        for group, members in group_by(rows, _group).items()
    )


def _missing(rows: Iterable[Compared]) -> tuple[Missing, ...]:
    counts = {key: len(same) for key, same in group_by((r.reason for r in rows), str).items()}
    counts.pop("", None)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Missing(reason=reason, num_runs=num) for reason, num in ordered)
