"""Searching without a formula: strategies are simulated one by one, as few as will do.

More in memory at once never takes less of it, and more blocks checkpointed never take more: so the
largest micro-batch that fits, and the fewest blocks, are found by halving. Work falls with the
micro-batch (weights are read, and operations launched, less often) and rises with what is
recomputed: so nothing else needs a look. Both are asserted for the formulas of the first rung.
"""

import contextlib
from collections.abc import Callable, Sequence
from itertools import product

import msgspec
import numpy as np

from brimful.cost.estimate import allocatable_bytes
from brimful.errors import InputError, UnsupportedError
from brimful.exact import exactness
from brimful.hardware.cluster import Cluster
from brimful.job import Job, Task
from brimful.plan import PLAN_SCHEMA, Plan
from brimful.search.explain import Shortfall, record
from brimful.search.solve import Solution
from brimful.search.space import Pins, micro_batches, pinned_strategy
from brimful.search.table import Objective, Table, columns_of, rank
from brimful.simulate.attempt import Attempt, attempt
from brimful.strategy import (
    Attention,
    Strategy,
    check_strategy,
    data_parallel,
    spell_checkpointing,
)

MAX_SIMULATIONS = 24
"""Half a minute on two free cores. What was not simulated by then is left out, and the output says
how many were."""
CHUNKS = (1, 4, 16)
CHUNKED: frozenset[Task] = frozenset({"causal-lm", "chat", "dpo"})
"""Tasks whose loss can be cut; the others have one row of logits per sample."""
KINDS = ("none", "selective", "full")

OnTried = Callable[[str, float], None]
"""Called with what was simulated last, and the share of the most that may be."""


class _EnoughError(Exception):
    """As many strategies were simulated as may be."""


class _Attempts:
    """Simulates each strategy once, and no more of them than allowed."""

    def __init__(self, job: Job, cluster: Cluster, *, on_tried: OnTried) -> None:
        self.done: dict[Strategy, Attempt] = {}
        self._refused: dict[Strategy, InputError | UnsupportedError] = {}
        self._job = job
        self._cluster = cluster
        self._on_tried = on_tried

    def __call__(self, strategy: Strategy) -> Attempt | None:
        """Simulate a strategy; None where it cannot run the job.

        Raises:
            InputError: The very first one cannot run it.
            UnsupportedError: The same.
            _EnoughError: There were enough.
        """
        if strategy in self._refused:
            return None
        if strategy not in self.done:
            self._try(strategy)
        return self.done.get(strategy)

    def _try(self, strategy: Strategy) -> None:
        if len(self.done) >= MAX_SIMULATIONS:
            raise _EnoughError
        self._on_tried(_spell(strategy), len(self.done) / MAX_SIMULATIONS)
        try:
            check_strategy(self._job, strategy)
            self.done[strategy] = attempt(self._job, self._cluster, strategy)
        except (InputError, UnsupportedError) as error:
            if not self.done:
                raise
            self._refused[strategy] = error

    def fits(self, strategy: Strategy) -> bool:
        """Whether a strategy can run the job, and fits."""
        tried = self(strategy)
        return tried is not None and not tried.short_bytes


def _spell(strategy: Strategy) -> str:
    return (
        f"micro-batch {strategy.micro_batch}, checkpointing {strategy.activation_checkpointing}, "
        f"{strategy.loss_chunks} loss chunks"
    )


def solve_by_simulation(  # noqa: PLR0913 - what ``search.solve`` takes, and who watches
    job: Job,
    cluster: Cluster,
    pins: Pins,
    *,
    attention: Attention,
    objective: Objective,
    on_tried: OnTried,
) -> Solution:
    """Search strategies for a job that no formula covers; see ``search.solve``.

    Args:
        job: What is trained.
        cluster: On what.
        pins: What the user fixed.
        attention: How the model attends.
        objective: ``time``: the fastest that fits. ``memory``: the smallest peak.
        on_tried: Told of every simulation.

    Returns:
        The best plan that was simulated, without an estimate, and the record of the search.

    Raises:
        InputError: A pinned value cannot run this job.
        UnsupportedError: This version cannot run it.
    """
    pinned = pinned_strategy(pins, attention, cluster.num_devices)
    sizes = _exact_sizes(job, pins, data_parallel(pinned))
    plainest = check_strategy(job, _with(pinned, micro_batch=sizes[0]))
    attempts = _Attempts(job, cluster, on_tried=on_tried)
    attempts(_with(plainest, micro_batch=sizes[0]))  # the plainest says if any can run
    with contextlib.suppress(_EnoughError):
        if objective != "memory":
            _explore_fastest(job, pins, plainest, sizes, attempts)
        else:
            _explore_smallest(job, pins, _with(plainest, micro_batch=sizes[0]), attempts)
    return _solution(job, cluster, list(attempts.done.values()), objective)


def _exact_sizes(job: Job, pins: Pins, num_parts: int) -> list[int]:
    """List the micro-batches that change nothing of what is learnt; all where none is such."""
    sizes = micro_batches(job, pins, num_parts)
    exact = [n for n in sizes if exactness(job, "micro_batch", n).how != "changes"]
    return exact or sizes


def _explore_smallest(job: Job, pins: Pins, smallest: Strategy, attempts: _Attempts) -> None:
    """Simulate what may have the smallest peak: the smallest micro-batch in every way."""
    for chunks, kind in product(_chunks(job, pins), _kinds(job, pins)):
        attempts(_with(smallest, loss_chunks=chunks, activation_checkpointing=kind))


def _explore_fastest(
    job: Job, pins: Pins, plainest: Strategy, sizes: Sequence[int], attempts: _Attempts
) -> None:
    """Simulate what may be the fastest, the likeliest first; stop where nothing can be faster."""
    for chunks in _chunks(job, pins):
        cut = _with(plainest, loss_chunks=chunks)
        largest = {}
        for kind in _kinds(job, pins):
            largest[kind] = _largest(sizes, _fits_at(cut, kind, attempts))
            if kind == _kinds(job, pins)[0] and largest[kind] == sizes[-1]:
                return
        between = [n for n in sizes if largest.get("none", n) < n <= largest.get("full", 0)]
        for size in between:
            _fewest_blocks(job, _with(cut, micro_batch=size), attempts)


def _chunks(job: Job, pins: Pins) -> tuple[int, ...]:
    if pins.loss_chunks is not None:
        return (pins.loss_chunks,)
    return CHUNKS if job.task in CHUNKED else CHUNKS[:1]


def _kinds(job: Job, pins: Pins) -> tuple[str, ...]:
    if pins.activation_checkpointing is not None:
        return (pins.activation_checkpointing,)
    return KINDS if job.model.num_layers else KINDS[:1]


def _fits_at(cut: Strategy, kind: str, attempts: _Attempts) -> Callable[[int], bool]:
    def fits(size: int) -> bool:
        return attempts.fits(_with(cut, micro_batch=size, activation_checkpointing=kind))

    return fits


def _largest(sizes: Sequence[int], fits: Callable[[int], bool]) -> int:
    """Find the largest size that fits, the whole batch first, then by halving; 0 if none does."""
    low, high = -1, len(sizes)
    probe = high - 1
    while high - low > 1:
        if fits(sizes[probe]):
            low = probe
        else:
            high = probe
        probe = (low + high) // 2
    return sizes[low] if low >= 0 else 0


def _fewest_blocks(job: Job, strategy: Strategy, attempts: _Attempts) -> None:
    """Find how few blocks must be checkpointed, where all are enough and none is too few.

    Peaks fall nearly in a line, which says where to look first.
    """
    num_layers = job.model.num_layers
    none, full = (attempts(_with(strategy, activation_checkpointing=k)) for k in ("none", "full"))
    if none is None or full is None or not _may_win(none, attempts):
        return
    per_block = max(1, (none.peak_bytes - full.peak_bytes) // num_layers)
    probe, stride, low, high = -(-none.short_bytes // per_block), 1, 0, num_layers
    while high - low > 1:
        probe = min(max(probe, low + 1), high - 1)
        text = spell_checkpointing(probe, num_layers=num_layers)
        if attempts.fits(_with(strategy, activation_checkpointing=text)):
            high, probe = probe, probe - stride
        else:
            low, probe = probe, probe + stride
        stride *= 2


def _may_win(none: Attempt, attempts: _Attempts) -> bool:
    """Whether a micro-batch is faster without recomputing anything than what was found so far.

    Where no rate is known less work wins: then it is not, if anything fits that recomputes nothing.
    """
    fitting = [a for a in attempts.done.values() if not a.short_bytes]
    if none.step_s is None:
        return all(a.strategy.activation_checkpointing != KINDS[0] for a in fitting)
    found = [a.step_s for a in fitting if a.step_s is not None]
    return none.step_s < min(found, default=np.inf)


def _with(strategy: Strategy, **changes: object) -> Strategy:
    return msgspec.structs.replace(strategy, **changes)


def _solution(
    job: Job, cluster: Cluster, attempts: list[Attempt], objective: Objective
) -> Solution:
    table = _tabulate(job, attempts)
    order = rank(table, objective=objective)
    plan = Plan(
        schema=PLAN_SCHEMA,
        job=job,
        cluster=cluster,
        strategy=attempts[order[0]].strategy,
        estimate=None,
    )
    found = record(
        table,
        order,
        rung="simulated",
        limit_bytes=allocatable_bytes(cluster.device),
        strategy=lambda row: attempts[row].strategy,
    )
    return Solution(plan, found)


def _tabulate(job: Job, attempts: list[Attempt]) -> Table:
    num_layers = job.model.num_layers
    strategies = [done.strategy for done in attempts]
    return Table(
        **columns_of(strategies, num_layers=num_layers),
        peak_bytes=np.array([float(done.peak_bytes) for done in attempts]),
        step_s=np.array([np.nan if a.step_s is None else a.step_s for a in attempts]),
        fits=np.array([not done.short_bytes for done in attempts]),
    )


def simulated_shortfall() -> Shortfall:
    """Return what ``search.explain.ways_out`` evaluates with, which remembers what it simulated.

    A peak of live bytes hangs on whose kernels run and not on the size of the device, so that a
    device that is too small for it needs no simulation of its own.
    """
    peaks: dict[tuple[str, Strategy, str], int] = {}

    def shortfall(job: Job, cluster: Cluster, strategy: Strategy) -> int:
        device = cluster.device
        key = (str(job), strategy, device.kernels)
        limit_bytes = allocatable_bytes(device)
        if peaks.get(key, 0) > limit_bytes:
            return peaks[key] - limit_bytes
        tried = attempt(job, cluster, strategy)
        peaks[key] = tried.peak_bytes
        return tried.short_bytes

    return shortfall
