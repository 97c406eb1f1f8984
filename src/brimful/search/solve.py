"""Finding the fastest strategy that fits: every strategy is evaluated, none is guessed away."""

from typing import NamedTuple

import numpy as np

from brimful.cost.estimate import allocatable_bytes, estimate
from brimful.cost.family import Family
from brimful.cost.formula import check_formula
from brimful.cost.memory import blas_bytes, follow_family, profile_for, states
from brimful.cost.profiles import Profile
from brimful.cost.step import family_work, step_seconds, update_bytes
from brimful.cost.update import Update, update_of
from brimful.hardware.cluster import Cluster
from brimful.job import Job
from brimful.plan import PLAN_SCHEMA, Plan
from brimful.search.explain import record
from brimful.search.record import SearchRecord
from brimful.search.space import Pins, families, pinned_strategy
from brimful.search.table import Objective, Table, rank, strategy_at
from brimful.strategy import Attention


class Solution(NamedTuple):
    """The plan, and how it was found.

    Attributes:
        plan: The fastest that fits, or the nearest to fitting where none does.
        record: What was considered.
    """

    plan: Plan
    record: SearchRecord


def solve(
    job: Job, cluster: Cluster, pins: Pins, *, attention: Attention, objective: Objective
) -> Solution:
    """Search the whole space.

    Args:
        job: What is trained.
        cluster: On what.
        pins: What the user fixed.
        attention: How the model attends.
        objective: ``time``: the fastest that fits. ``memory``: the smallest peak.

    Returns:
        The best plan, which says itself whether it fits, and the record of the search.

    Raises:
        InputError: A pinned value cannot run this job.
        UnsupportedError: No formula covers the job.
    """
    check_formula(job, pinned_strategy(pins, attention), cluster.device)
    members = families(job, pins, attention=attention, kernels=cluster.device.kernels)
    table = tabulate(job, cluster, attention, list(members))
    order = rank(table, objective=objective)
    best = strategy_at(job, table, int(order[0]), attention)
    plan = Plan(
        schema=PLAN_SCHEMA,
        job=job,
        cluster=cluster,
        strategy=best,
        estimate=estimate(job, cluster, best),
    )
    found = record(
        table,
        order,
        rung="predicted",
        limit_bytes=allocatable_bytes(cluster.device),
        strategy=lambda row: strategy_at(job, table, row, attention),
    )
    return Solution(plan, found)


def tabulate(job: Job, cluster: Cluster, attention: Attention, members: list[Family]) -> Table:
    """Predict peak and step time of every strategy."""
    update = update_of(job, cluster.device.kernels)
    columns = [
        _predict(
            job,
            cluster,
            profile_for(job, attention, cluster.device, family.recompute),
            update,
            family,
        )
        for family in members
    ]
    return Table(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def _predict(job: Job, cluster: Cluster, profile: Profile, update: Update, family: Family) -> Table:
    held, blas = states(job, update), blas_bytes(job, family, cluster.device)
    peak, _ = follow_family(job, profile, cluster.device, family, by_item=False)
    inside = held.loaded + held.optimizer_state + blas + peak.level[0]
    work = family_work(job, profile, family, moved_by_update=update_bytes(held))
    seconds = step_seconds(work, job, cluster.device)
    num_blocks = np.asarray(family.num_blocks)
    unknown = np.full(len(num_blocks), np.nan)
    peak_bytes = np.maximum(inside, sum(held) + blas + update.transient)
    return Table(
        micro_batch=np.full(len(num_blocks), family.micro_batch),
        loss_chunks=np.full(len(num_blocks), family.loss_chunks),
        num_blocks=num_blocks,
        selective=np.full(len(num_blocks), family.recompute == "selective"),
        peak_bytes=peak_bytes,
        step_s=unknown if seconds is None else sum(seconds, start=np.zeros(len(num_blocks))),
        fits=peak_bytes <= allocatable_bytes(cluster.device),
    )
