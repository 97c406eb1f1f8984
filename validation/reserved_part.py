"""Predicted against simulated reserved memory, on drawn jobs.

Jobs are drawn as those of ``predicted_part.py``. What formulas ask for and what
the simulation asks for is replayed on a card without end, with PyTorch's settings and with
expandable segments. Jobs on a CPU, which has no such allocator, are left out.
"""

import random
from collections.abc import Sequence

from evidence import Case, Summary, all_strata, describe_case, relative, spreads
from holding_rows import ReservedRow
from predicted_part import QUICK_SHAPES, SHAPES
from sampler import ALL_FACTORS, Drawn, cluster_for, draw_cases
from side_by_side import answered

from brimful.allocator.config import parse_settings
from brimful.allocator.replay import Requests, replay
from brimful.cost.reserved import candidate_of
from brimful.cost.stage_site import fullest_ranks
from brimful.hardware.cluster import Cluster
from brimful.simulate.run import simulate_recorded

NUM_CASES, NUM_QUICK_CASES = 300, 3
NUM_DRAWN = 3
"""Cases drawn for each that is wanted: many are on a CPU."""
ALLOCATORS = ("", "expandable_segments:True")
MEDIAN_BAR, WORST_BAR = 0.003, 0.03


def run(*, seed: int, quick: bool) -> tuple[list[ReservedRow], Summary]:
    """Draw, predict and simulate."""
    shapes, num_cases = (QUICK_SHAPES, NUM_QUICK_CASES) if quick else (SHAPES, NUM_CASES)
    drawn = draw_cases(
        random.Random(seed),  # noqa: S311 - cases, not secrets
        NUM_DRAWN * num_cases,
        ALL_FACTORS,
        shapes,
        lambda _case, _estimate: None,
    )
    on_gpus = [case for case in drawn.cases if case.kernels == "cuda"]
    rows = answered("reserved", compare, on_gpus[:num_cases])
    return rows, summarize(rows, drawn)


def compare(case: Case) -> ReservedRow:
    """Replay both sequences of a case, with both settings of the allocator."""
    cluster = cluster_for(case)
    candidate = candidate_of(case.job, cluster, case.strategy)
    assert candidate is not None, describe_case(case)
    simulated = _simulated(case, cluster)
    plain, expandable = (
        (_reserved(candidate.requests, name), _reserved(simulated, name)) for name in ALLOCATORS
    )
    return ReservedRow(
        case=case,
        predicted_bytes=plain[0],
        simulated_bytes=plain[1],
        reserved_error=relative(*plain),
        expandable_error=relative(*expandable),
    )


def _simulated(case: Case, cluster: Cluster) -> list[Requests]:
    """Return what the simulation asks for: a device of every place of a pipeline, or the one."""
    ranks = fullest_ranks(case.job, case.strategy) if case.strategy.pp > 1 else [None]
    return [
        simulate_recorded(case.job, cluster, case.strategy, rank=rank).recording.requests()
        for rank in ranks
    ]


def _reserved(every: Sequence[Requests], allocator: str) -> int:
    settings = parse_settings(allocator)
    return max(
        replay(each, settings=settings, capacity_bytes=None).peak_reserved_bytes for each in every
    )


def summarize(rows: list[ReservedRow], drawn: Drawn) -> Summary:
    """Sum up, and say which bars are missed."""
    kinds = (
        ("reserved", lambda row: row.reserved_error),
        ("expandable", lambda row: row.expandable_error),
    )
    found = {
        of: spreads(of, rows, case=lambda row: row.case, error=error, factors=all_strata)
        for of, error in kinds
    }
    missed = [
        f"median error of {of} {each[0].median:.2%} > {MEDIAN_BAR:.1%}"
        for of, each in found.items()
        if each[0].median > MEDIAN_BAR
    ]
    missed += [
        f"{of} {error(row):+.2%}: {describe_case(row.case)}"
        for row in rows
        for of, error in kinds
        if abs(error(row)) > WORST_BAR
    ]
    return Summary(
        num_drawn=drawn.num_drawn,
        refusals=drawn.refusals,
        num_cases=len(rows),
        num_rich=0,
        spreads=tuple(spread for each in found.values() for spread in each),
        bars=(f"median <= {MEDIAN_BAR:.1%}, each <= {WORST_BAR:.0%}, with both allocators",),
        missed=tuple(missed),
    )
