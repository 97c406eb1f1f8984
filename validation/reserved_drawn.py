"""Predicted against simulated reserved memory, on drawn jobs: ``--seed N --seconds S``.

Draws jobs as the comparison of peaks does (``predicted_part.py``), replays what formulas ask for
and what the simulation asks for on a card without end, with PyTorch's settings and with expandable
segments, and prints signed errors: of a pipeline, of the device that reserves most. Jobs on a CPU
have no predicted sequence; they are left out.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from evidence import Case, describe_case, relative
from predicted_part import NUM_CASES, SHAPES
from sampler import ALL_FACTORS, cluster_for, draw_cases

from brimful.allocator.config import parse_settings
from brimful.allocator.replay import Requests, replay
from brimful.cost.reserved import candidate_of
from brimful.hardware.cluster import Cluster
from brimful.simulate.run import ranks_of_row, simulate_recorded

ALLOCATORS = ("", "expandable_segments:True")
MEDIAN_BAR, WORST_BAR = 0.003, 0.03


class Row(NamedTuple):
    """A job: what is reserved of it by simulation, in bytes, and signed errors per allocator."""

    case: Case
    simulated_bytes: int
    errors: tuple[float, ...]


def main() -> int:
    """Draw, compare, print; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600.0)
    args = parser.parse_args()
    rows = []
    for row in compared(args.seed, args.seconds):
        rows.append(row)
        errors = " ".join(f"{error:+9.4%}" for error in row.errors)
        print(errors, f"{row.simulated_bytes / 2**30:10.2f} GiB", describe_case(row.case))
    sizes = [abs(error) for row in rows for error in row.errors]
    if not sizes:
        print("nothing was compared")
        return 1
    median, worst = statistics.median(sizes), max(sizes)
    num_beyond = sum(max(map(abs, row.errors)) > WORST_BAR for row in rows)
    print(f"{len(rows)} jobs, median {median:.4%}, worst {worst:.4%}, {num_beyond} beyond the bar")
    return int(median > MEDIAN_BAR or worst > WORST_BAR)


def compared(seed: int, seconds: float) -> Iterator[Row]:
    """Yield a row per drawn job that has a sequence, until time is over."""
    drawn = draw_cases(
        random.Random(seed),  # noqa: S311 - cases, not secrets
        NUM_CASES,
        ALL_FACTORS,
        SHAPES,
        lambda _case, _estimate: None,
    )
    end_s = time.monotonic() + seconds
    for case in drawn.cases:
        if time.monotonic() > end_s:
            return
        cluster = cluster_for(case)
        candidate = candidate_of(case.job, cluster, case.strategy)
        if candidate is None:
            continue
        simulated = _simulated(case, cluster)
        each = [
            (_reserved(candidate.requests, name), _reserved(simulated, name)) for name in ALLOCATORS
        ]
        yield Row(case, each[0][1], tuple(relative(said, found) for said, found in each))


def _simulated(case: Case, cluster: Cluster) -> list[Requests]:
    """Return what the simulation asks for: a device of every place of a pipeline, or the one."""
    ranks = ranks_of_row(case.strategy) if case.strategy.pp > 1 else [None]
    return [
        simulate_recorded(case.job, cluster, case.strategy, rank=rank).recording.requests()
        for rank in ranks
    ]


def _reserved(every: Sequence[Requests], allocator: str) -> int:
    settings = parse_settings(allocator)
    return max(
        replay(each, settings=settings, capacity_bytes=None).peak_reserved_bytes for each in every
    )


if __name__ == "__main__":
    sys.exit(main())
