"""First rung against second: formulas against the simulation of the whole model."""

import random
from collections import Counter
from collections.abc import Callable

import msgspec
from cells import Cell, refusal_of
from evidence import (
    LEAST_OTHER_SHARE,
    RICH_SHARE,
    Case,
    Evidence,
    PredictedRow,
    Refusal,
    Spread,
    Summary,
    all_strata,
    describe_case,
    other_bytes,
    relative,
    spreads,
)
from sampler import (
    ALL_FACTORS,
    REGISTRY_SHARE,
    Drawn,
    Range,
    Shapes,
    cluster_for,
    draw_cases,
    draw_missing,
)
from side_by_side import answered

from brimful.cost.estimate import estimate
from brimful.simulate.run import simulate
from brimful.values.results import Simulation

NAME = "predicted vs simulated"
NUM_CASES, NUM_QUICK_CASES = 300, 3
UNCOLLECTED_BYTES = 64
"""Tensors without dimensions that wait for Python's garbage collector."""
MEDIAN_BAR, WORST_BAR = 0.01, 0.03
SHAPES = Shapes(
    hidden=Range(256, 8192),
    layers=Range(2, 96),
    vocab=Range(8_000, 260_000),
    seq_len=Range(128, 65_536),
    micro_batch=Range(1, 16),
    chunks=Range(2, 64),
    registry_share=REGISTRY_SHARE,
)
QUICK_SHAPES = SHAPES._replace(layers=Range(2, 6), registry_share=0.0)


def _where(simulated: Simulation) -> str:
    """Say where a peak lies; of steps that are alike, but for what nobody has collected yet, last.

    Args:
        simulated: Two steps.
    """
    highest = simulated.simulated_peak_allocated_bytes - UNCOLLECTED_BYTES
    return [phase for phase in simulated.phases if phase.num_bytes >= highest][-1].where


def run(*, seed: int, quick: bool) -> tuple[list[PredictedRow], Summary]:
    """Draw, predict and simulate."""
    shapes, num_cases = (QUICK_SHAPES, NUM_QUICK_CASES) if quick else (SHAPES, NUM_CASES)
    drawn = draw_cases(
        random.Random(seed),  # noqa: S311 - cases, not secrets
        num_cases,
        ALL_FACTORS,
        shapes,
        lambda _case, _estimate: None,
    )
    rows = answered(NAME, compare, drawn.cases)
    return rows, summarize(rows, drawn)


def complete(evidence: Evidence[PredictedRow], *, seed: int) -> tuple[list[PredictedRow], Summary]:
    """Keep the rows whose cells are not refused now, and add what is missing of pairs and number.

    Args:
        evidence: What was made before.
        seed: Of the cases that are added.
    """
    kept = [row for row in evidence.rows if not refusal_of(cell_of(row.case))]
    added = draw_missing(
        random.Random(seed),  # noqa: S311 - cases, not secrets
        [cell_of(row.case) for row in kept],
        len(evidence.rows) - len(kept),
        ALL_FACTORS,
        SHAPES,
    )
    rows = kept + answered(NAME, compare, added.cases)
    before = evidence.summary
    gone = len(evidence.rows) - len(kept)
    refused = Counter(filter(None, (refusal_of(cell_of(row.case)) for row in evidence.rows)))
    for refusal in (*before.refusals, *added.refusals):
        refused[refusal.reason] += refusal.num_draws
    drawn = Drawn(
        tuple(row.case for row in rows),
        before.num_drawn + added.num_drawn,
        tuple(Refusal(reason=r, num_draws=n) for r, n in refused.most_common()),
    )
    finding = (
        f"{gone} of {len(evidence.rows)} cases that were drawn before have no formula any more; "
        f"{len(added.cases)} were drawn (seed {seed}), so that every possible pair is there"
    )
    findings = (*before.findings, finding)
    return rows, msgspec.structs.replace(summarize(rows, drawn), findings=findings)


def cell_of(case: Case) -> Cell:
    """Return the cell that a case was drawn in."""
    found = all_strata(case)
    return {factor: found[factor] for factor in ALL_FACTORS}


def compare(case: Case) -> PredictedRow:
    """Climb the first two rungs of a case."""
    cluster = cluster_for(case)
    predicted = estimate(case.job, cluster, case.strategy)
    simulated = simulate(case.job, cluster, case.strategy)
    peak, others = simulated.simulated_peak_allocated_bytes, other_bytes(simulated.items)
    said, said_others = predicted.predicted_peak_allocated_bytes, other_bytes(predicted.items)
    return PredictedRow(
        case=case,
        predicted_peak_allocated_bytes=said,
        simulated_peak_allocated_bytes=peak,
        predicted_other_bytes=said_others,
        simulated_other_bytes=others,
        where=_where(simulated),
        peak_error=relative(said, peak),
        other_error=relative(said_others, others) if others >= LEAST_OTHER_SHARE * peak else None,
    )


def summarize(rows: list[PredictedRow], drawn: Drawn) -> Summary:
    """Sum up, and say which bars are missed."""
    rich = [row for row in rows if _other_share(row) > RICH_SHARE]
    peaks = _spreads("peak", rows, lambda row: row.peak_error)
    with_others = [row for row in rows if row.other_error is not None]
    others = (
        _spreads("other bytes", with_others, lambda row: row.other_error or 0.0)
        if with_others
        else []
    )
    missed = [text for spread in (peaks[0], *others[:1]) for text in _missed(spread)]
    missed += [
        f"{name} {error:+.2%}: {describe_case(row.case)}"
        for row in rows
        for name, error in (("peak", row.peak_error), ("other bytes", row.other_error or 0.0))
        if abs(error) > WORST_BAR
    ]
    if 2 * len(rich) < len(rows):
        missed.append(f"only {len(rich)} of {len(rows)} cases have {RICH_SHARE:.0%} other bytes")
    return Summary(
        num_drawn=drawn.num_drawn,
        refusals=drawn.refusals,
        num_cases=len(rows),
        num_rich=len(rich),
        spreads=(*peaks, *others),
        bars=(f"median <= {MEDIAN_BAR:.0%}, each <= {WORST_BAR:.0%}, peak and other bytes",),
        missed=tuple(missed),
    )


def _spreads(
    of: str, rows: list[PredictedRow], error: Callable[[PredictedRow], float]
) -> list[Spread]:
    return spreads(of, rows, case=lambda row: row.case, error=error, factors=all_strata)


def _other_share(row: PredictedRow) -> float:
    return row.simulated_other_bytes / row.simulated_peak_allocated_bytes


def _missed(spread: Spread) -> list[str]:
    if spread.median <= MEDIAN_BAR:
        return []
    return [f"median error of {spread.of} {spread.median:.2%} > {MEDIAN_BAR:.0%}"]
