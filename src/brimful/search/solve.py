"""Finding the fastest strategy that fits: every strategy is evaluated, none is guessed away."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from brimful.cost.estimate import allocatable_bytes, estimate
from brimful.cost.formula import check_formula
from brimful.hardware.cluster import Cluster
from brimful.job import Job
from brimful.plan import PLAN_SCHEMA, Plan
from brimful.search.explain import frontier, record
from brimful.search.grid import Grid, Search, evaluate
from brimful.search.record import Considered, SearchRecord
from brimful.search.space import Pins, grids, pinned_strategy
from brimful.search.table import Objective, Table, rank, strategy_at
from brimful.strategy import Attention, Strategy


class Solution(NamedTuple):
    """The plan, and how it was found.

    Attributes:
        plan: The fastest that fits, or the nearest to fitting where none does.
        record: What was considered.
        frontier: What fits and is beaten in both time and peak by nothing, fastest first.
    """

    plan: Plan
    record: SearchRecord
    frontier: tuple[Considered, ...] = ()


def solve(  # noqa: PLR0913 - what is searched, and how
    job: Job,
    cluster: Cluster,
    pins: Pins,
    *,
    attention: Attention,
    objective: Objective,
    also: Sequence[Pins] = (),
) -> Solution:
    """Search the whole space.

    Args:
        job: What is trained.
        cluster: On what.
        pins: What the user fixed.
        attention: How the model attends.
        objective: ``time``: the fastest that fits. ``memory``: the smallest peak.
        also: More that may be fixed instead: what the user fixed are lists of values.

    Returns:
        The best plan, which says itself whether it fits, and the record of the search.

    Raises:
        InputError: A pinned value cannot run this job.
        UnsupportedError: No formula covers the job.
    """
    num_devices = cluster.num_devices
    check_formula(job, pinned_strategy(pins, attention, num_devices), cluster.device)
    space = chain.from_iterable(
        grids(job, each, attention=attention, cluster=cluster) for each in (pins, *also)
    )
    table = tabulate(job, cluster, attention, space)
    order = rank(table, objective=objective)
    reference = pins.reference or "none"
    best = strategy_at(job, table, int(order[0]), attention, reference)
    plan = Plan(
        schema=PLAN_SCHEMA,
        job=job,
        cluster=cluster,
        strategy=best,
        estimate=estimate(job, cluster, best),
    )
    limit_bytes = allocatable_bytes(cluster.device)

    def strategy(row: int) -> Strategy:
        return strategy_at(job, table, row, attention, reference)

    return Solution(
        plan,
        record(table, order, rung="predicted", limit_bytes=limit_bytes, strategy=strategy),
        frontier(table, best=int(order[0]), limit_bytes=limit_bytes, strategy=strategy),
    )


def tabulate(job: Job, cluster: Cluster, attention: Attention, space: Iterable[Grid]) -> Table:
    """Predict peak and step time of every strategy."""
    search = Search(job, cluster, attention, held={}, levels={})
    columns = [evaluate(search, grid) for grid in space]
    return Table(*(np.concatenate(column) for column in zip(*columns, strict=True)))
