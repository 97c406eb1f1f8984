"""Finding the fastest strategy that fits: none is guessed away.

Every strategy without a pipeline is evaluated, and every pipeline that could be better (``rows``).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from brimful.cost.estimate import estimate, tensor_limit_bytes
from brimful.cost.formula import check_formula
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster
from brimful.search.explain import frontier, record
from brimful.search.grid import evaluate
from brimful.search.grid_values import Grid, Search
from brimful.search.pins import (
    Pins,
    asks_for_row,
    fsdp_of,
    fused_of,
    may_be_row,
    pinned_strategy,
)
from brimful.search.record import Considered, SearchRecord
from brimful.search.rows import Bar, Found, Rows, place_of
from brimful.search.space import grids, has_rows_foreseen, possible
from brimful.search.table import (
    Objective,
    Table,
    columns_of,
    empty_table,
    joined,
    rank,
    strategy_at,
)
from brimful.values.job import Job
from brimful.values.plan import PLAN_SCHEMA, MemoryItem, Plan
from brimful.values.results import Reserved
from brimful.values.strategy import Attention, Strategy


@dataclass(frozen=True, eq=False)
class Space:
    """Everything that was looked at, so that the next best can be asked for.

    Attributes:
        job: What is trained.
        cluster: On what.
        attention: How the model attends, in all strategies.
        pins: What the user fixed.
        objective: What is made least.
        table: Every strategy; of pipelines those that were looked at.
        pipelines: Where more of these come from.
    """

    job: Job
    cluster: Cluster
    attention: Attention
    pins: Pins
    objective: Objective
    table: Table
    pipelines: tuple[Rows, ...] = ()

    def best(self) -> "Solution":
        """Return the best strategy as a plan, and the others beside it."""
        table, limit_bytes = self.table, tensor_limit_bytes(self.cluster)
        order = self.order()
        row = int(order[0])
        return Solution(
            self.plan(row),
            record(table, order, rung="predicted", limit_bytes=limit_bytes, strategy=self.strategy),
            frontier(table, best=row, limit_bytes=limit_bytes, strategy=self.strategy),
            space=self,
            row=row,
        )

    def order(self) -> NDArray[np.int64]:
        """Return the rows, best first: [strategies]."""
        return self._order

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return rank(self.table, objective=self.objective)

    def plan(self, row: int) -> Plan:
        """Return the strategy of a row as a plan."""
        strategy = self.strategy(row)
        return Plan(
            schema=PLAN_SCHEMA,
            job=self.job,
            cluster=self.cluster,
            strategy=strategy,
            estimate=estimate(self.job, self.cluster, strategy),
        )

    def with_more_pipelines(
        self, step_s: float, is_hopeless: Callable[[Found], bool]
    ) -> "Space | None":
        """Return the same with the next fastest pipelines; None where none is left.

        ``step_s``: None that takes longer is looked at. ``is_hopeless``: whether one that fits by
        its live bytes is known not to hold.
        """
        place = math.inf if math.isinf(step_s) else place_of(step_s)
        found = [one for rows in self.pipelines for one in rows.faster(place, is_hopeless)]
        if not found:
            return None
        more = _table_of(found, self.job, self.cluster)
        return replace(self, table=joined([self.table, more]))

    def without(self, rows: NDArray[np.bool_]) -> "Space":
        """Return the same where some rows do not fit.

        ``rows``: [strategies], which.
        """
        return replace(self, table=self.table._replace(fits=self.table.fits & ~rows))

    def alike(self, row: int) -> NDArray[np.bool_]:
        """Tell which rows are spread, cut and recomputed in the same way: [strategies]."""
        table = self.table
        recomputed = (table.micro_batch, table.recompute)
        same: NDArray[np.bool_] = np.logical_and.reduce([each == each[row] for each in recomputed])
        return same & self.spread_alike(row)

    def spread_alike(self, row: int) -> NDArray[np.bool_]:
        """Tell which rows are spread and cut in the same way: [strategies]."""
        table = self.table
        columns = (
            table.zero, table.num_shards, table.tp, table.ep, table.holds, table.pp, table.schedule,
            table.stages, table.offloads,
        )  # fmt: skip
        same: NDArray[np.bool_] = np.logical_and.reduce([each == each[row] for each in columns])
        return same

    def strategy(self, row: int) -> Strategy:
        """Return the strategy of a row."""
        reference = self.pins.reference or "none"
        found = strategy_at(self.job, self.table, row, self.attention, reference)
        return msgspec.structs.replace(
            found,
            fused_kernels=fused_of(self.pins),
            fsdp=fsdp_of(self.pins),
            allocator=self.pins.allocator or "",
        )


class Solution(NamedTuple):
    """The plan, and how it was found.

    Attributes:
        plan: The fastest that fits, or the nearest to fitting where none does.
        record: What was considered.
        frontier: What fits and is beaten in both time and peak by nothing, fastest first.
        space: What it was found in; None: it was simulated.
        row: Its row there.
        reserved: What the allocator made of it where it was simulated; None: that is not known.
        host_bytes: What a node's host holds of what is offloaded, where it was simulated.
        items: What is alive at its peak, where it was simulated.
        offloaded: The nearest to fitting of what offloads, where that was searched and no more fits
            than without.
        counts: What is best on other numbers of devices, where these were searched too, the most
            devices first.
    """

    plan: Plan
    record: SearchRecord
    frontier: tuple[Considered, ...] = ()
    space: Space | None = None
    row: int = 0
    reserved: Reserved | None = None
    host_bytes: int = 0
    items: tuple[MemoryItem, ...] = ()
    offloaded: Plan | None = None
    counts: tuple[Plan, ...] = ()


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
    every = (pins, *also)
    alone = [each for each in every if not asks_for_row(each)]
    space = chain.from_iterable(
        grids(job, each, attention=attention, cluster=cluster) for each in alone
    )
    table = tabulate(job, cluster, attention, space) if alone else empty_table()
    are_foreseen = has_rows_foreseen(job, attention, cluster.device)
    wanted = [each for each in every if may_be_row(each) and (are_foreseen or asks_for_row(each))]
    pipelines = tuple(Rows(job, cluster, attention, each) for each in wanted)
    for rows in pipelines:
        found = rows.search(_bar(table, objective), objective=objective)
        table = joined([table, _table_of(found, job, cluster)]) if found else table
    if not len(table.peak_bytes):
        raise _nothing_runs(job, every, attention, num_devices)
    more = () if objective == "memory" else pipelines
    return Space(job, cluster, attention, pins, objective, table, more).best()


def _bar(table: Table, objective: Objective) -> Bar:
    """Return what a pipeline has to be as good as; where times are unknown any may be."""
    if not len(table.peak_bytes) or not table.fits.any():
        return Bar(math.inf, min(table.peak_bytes, default=math.inf))
    best = int(rank(table, objective=objective)[0])
    if np.isnan(table.step_s[best]):
        return Bar(-math.inf, table.peak_bytes[best])
    return Bar(place_of(table.step_s[best]), table.peak_bytes[best])


def _table_of(found: Sequence[Found], job: Job, cluster: Cluster) -> Table:
    peaks = np.array([each.peak_bytes for each in found])
    return Table(
        **columns_of([each.strategy for each in found], num_layers=job.model.num_layers),
        peak_bytes=peaks,
        step_s=np.array([each.step_s for each in found]),
        fits=peaks <= tensor_limit_bytes(cluster),
    )


def _nothing_runs(
    job: Job, every: Sequence[Pins], attention: Attention, num_devices: int
) -> InputError | UnsupportedError:
    """Say why no strategy has what the user fixed."""
    try:
        possible(job, every, num_devices)
    except (InputError, UnsupportedError) as error:
        return error
    return UnsupportedError(
        f"no pipeline of {num_devices} devices has what was fixed and a formula; brimful simulate "
        f"traces one, with attention={attention} and the rest given in full"
    )


def tabulate(job: Job, cluster: Cluster, attention: Attention, space: Iterable[Grid]) -> Table:
    """Predict peak and step time of every strategy."""
    search = Search(job, cluster, attention, held={}, levels={}, works={}, waits={})
    columns = [evaluate(search, grid) for grid in space]
    return joined(columns) if columns else empty_table()
