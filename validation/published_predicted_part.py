"""Published runs on the first rung: what formulas say beside what was published."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import get_args

from evidence import Spread, Summary, spread_of

from brimful.published.compare import Compared, compare_all
from brimful.published.rows import Split, published_runs, split_of
from brimful.published.scoreboard import scoreboard
from brimful.published.scores import (
    MAX_MEDIAN,
    MAX_NO,
    MAX_P90,
    MAX_SPEED_MEDIAN,
    MIN_COVERAGE,
    MIN_TAU,
    Coverage,
    Errors,
    Scoreboard,
)

ALLOCATED, SPEED = "allocated", "tokens/s"


def run(*, seed: int, quick: bool) -> tuple[list[Compared], Summary]:
    """Predict every run that is carried, and replay it; nothing is drawn."""
    del seed, quick
    rows = compare_all(published_runs(), holds=True)
    return list(rows), summarize(rows)


def summarize(rows: Sequence[Compared]) -> Summary:
    """Sum up by family and program, and say which bars are missed."""
    scores = scoreboard(rows)
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=tuple(_spreads(rows)),
        bars=(
            f"allocated bytes of traced programs: median <= {MAX_MEDIAN:.0%}, p90 <= {MAX_P90:.0%}",
            f"bands hold {MIN_COVERAGE:.0%} of their reserved and process figures",
            f"of runs that ran at most {MAX_NO:.0%} are said not to hold",
            f"speeds: median <= {MAX_SPEED_MEDIAN:.0%}, tau of swept strategies >= {MIN_TAU}",
        ),
        missed=tuple(_missed(rows, scores)),
        findings=tuple(_findings(scores)),
    )


def _spreads(rows: Sequence[Compared]) -> Iterator[Spread]:
    allocated = errors_of([row for row in rows if row.has_bar], ALLOCATED)
    speeds = errors_of(rows, SPEED)
    for of, errors in ((ALLOCATED, allocated), (SPEED, speeds)):
        if errors:
            yield spread_of(of, errors)
    for split, of in product(get_args(Split), (ALLOCATED, SPEED)):
        errors = errors_of([row for row in rows if split_of(row.source) == split], of)
        if errors:
            yield spread_of(of, errors, factor="split", value=split)
    for of in (ALLOCATED, SPEED):
        for program in dict.fromkeys((row.family, row.label) for row in rows):
            own = [row for row in rows if (row.family, row.label) == program]
            errors = errors_of(own, of)
            if errors:
                yield spread_of(of, errors, factor=program[0], value=program[1])


def errors_of(rows: Sequence[Compared], of: str) -> list[float]:
    """Return the signed relative errors of all rows that have both figures.

    Args:
        rows: Runs.
        of: ``allocated`` or ``tokens/s``.
    """
    pairs = [
        (row.published_allocated_gib, row.predicted_allocated_gib)
        if of == ALLOCATED
        else (row.published_tokens_per_s, row.predicted_tokens_per_s)
        for row in rows
    ]
    return [here / there - 1 for there, here in pairs if there and here]


def coverage_of(bands: Sequence[Coverage]) -> float:
    """Return the share of figures within their band, over groups; 1 where there are none."""
    return sum(b.num_within for b in bands) / max(1, sum(b.num_figures for b in bands))


def _missed(rows: Sequence[Compared], scores: Scoreboard) -> Iterator[str]:
    for spread in _spreads(rows):
        if spread.factor != "all":
            continue
        most = MAX_MEDIAN if spread.of == ALLOCATED else MAX_SPEED_MEDIAN
        if spread.median > most:
            yield f"median error of {spread.of} {spread.median:.1%} > {most:.0%}"
        if spread.of == ALLOCATED and spread.p90 > MAX_P90:
            yield f"p90 error of {spread.of} {spread.p90:.1%} > {MAX_P90:.0%}"
    barred = [band for band in scores.bands if band.has_bar]
    for figure in dict.fromkeys(band.figure for band in barred):
        share = coverage_of([band for band in barred if band.figure == figure])
        if share < MIN_COVERAGE:
            yield f"bands hold {share:.0%} of the {figure} figures, not {MIN_COVERAGE:.0%}"
    num_no = sum(len(group.no) for group in scores.holds)
    share_no = num_no / max(1, sum(group.num_runs for group in scores.holds))
    if share_no > MAX_NO:
        yield f"{share_no:.0%} of runs that ran are said not to hold, not {MAX_NO:.0%}"
    num_pairs = sum(order.num_pairs for order in scores.orders)
    tau = sum(order.tau * order.num_pairs for order in scores.orders) / max(1, num_pairs)
    if num_pairs and tau < MIN_TAU:
        yield f"tau {tau:+.2f} < {MIN_TAU} over {num_pairs} pairs of swept strategies"


def _findings(scores: Scoreboard) -> Iterator[str]:
    yield f"{scores.num_predicted} of {scores.num_runs} runs have a formula"
    for band in scores.bands:
        yield (
            f"{band.family}, {band.label}: {band.num_within} of {band.num_figures} {band.figure} "
            f"figures within their bands ({band.split} sources)"
        )
    for group in scores.holds:
        no = f", no: {', '.join(group.no)}" if group.no else ""
        yield (
            f"{group.family}, {group.label}: of {group.num_runs} runs that ran "
            f"{len(group.no)} are said not to hold, {group.num_tight} to be tight{no}"
        )
    for order in scores.orders:
        yield (
            f"{order.family}, {order.label}: tau {order.tau:+.2f} over {order.num_pairs} pairs of "
            f"{order.num_sweeps} sweeps"
        )
    for missing in scores.missing:
        yield f"no formula for {missing.num_runs}: {missing.reason}"


def medians(groups: Sequence[Errors]) -> dict[tuple[str, str], float]:
    """Return the median absolute error of every family and program that has one."""
    return {(g.family, g.label): g.median_size for g in groups if g.median_size is not None}
