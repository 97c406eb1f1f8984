"""Searching without a formula: strategies are simulated one by one, as few as will do.

More in memory at once never takes less of it, and more blocks checkpointed never take more: so the
largest micro-batch that fits, and the fewest blocks, are found by halving. Work falls with the
micro-batch (weights are read, and operations launched, less often) and rises with what is
recomputed: so nothing else needs a look. Both are asserted for the formulas of the first rung.

A search ends with its budget, in the middle of a simulation if need be, and with what it has found;
what it did not look at is part of the answer.
"""

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

import msgspec
import numpy as np

from brimful.cost.estimate import tensor_limit_bytes
from brimful.errors import InputError, OutOfTimeError, UnsupportedError
from brimful.hardware.cluster import Cluster
from brimful.search.budget import Budget
from brimful.search.explain import record
from brimful.search.pins import Pins, fused_of
from brimful.search.record import INTERRUPTED, Untried
from brimful.search.solve import Solution
from brimful.search.space import chunks_of, plainest_strategy
from brimful.search.spelling import spell, spell_way, way_of
from brimful.search.table import Objective, Table, columns_of, rank
from brimful.search.tries import Shortfall
from brimful.simulate.attempt import Attempt, attempt
from brimful.techniques.runnable import check_strategy
from brimful.values.job import Job
from brimful.values.plan import PLAN_SCHEMA, Plan
from brimful.values.strategy import Attention, Strategy, spell_checkpointing

MAX_SIMULATIONS = 24
"""Half a minute on two free cores. What was not simulated by then is left out, and the output says
what that is."""
CHUNKS = (1, 4, 16)
KINDS = ("none", "selective", "full")
SOME_BLOCKS = "checkpointing of some blocks only"
TELL_EVERY_S = 1.0
"""How often whoever watches is told, beside every simulation that begins."""


class SearchState(NamedTuple):
    """How far a search is.

    Attributes:
        num_done: Simulations behind it.
        num_most: That there may be in all.
        trying: What is simulated now.
        best: The best that was found, or the nearest to fitting; None before the first.
        left_s: Seconds of the budget.
    """

    num_done: int
    num_most: int
    trying: Strategy
    best: Attempt | None
    left_s: float


Watch = Callable[[SearchState], None]


class _EnoughError(Exception):
    """As many strategies were simulated as may be."""


class _Space(NamedTuple):
    """What is looked at: loss chunks by kinds of checkpointing by micro-batches, smallest first."""

    chunks: tuple[int, ...]
    kinds: tuple[str, ...]
    sizes: list[int]

    @property
    def size(self) -> int:
        """How many combinations there are."""
        return len(self.chunks) * len(self.kinds) * len(self.sizes)


class _Attempts:
    """Simulates each strategy once, and no more of them than allowed."""

    def __init__(
        self, job: Job, cluster: Cluster, budget: Budget, *, objective: Objective, watch: Watch
    ) -> None:
        self.done: dict[Strategy, Attempt] = {}
        self.refused: dict[Strategy, InputError | UnsupportedError] = {}
        self.num_most = MAX_SIMULATIONS
        self.takes_tight = False
        self._job = job
        self._cluster = cluster
        self._budget = budget
        self._objective = objective
        self._watch = watch
        self._told_s = math.inf

    def __call__(self, strategy: Strategy) -> Attempt | None:
        """Simulate a strategy; None where it cannot run the job.

        Raises InputError: the very first one cannot run it. Raises UnsupportedError: the same.
        Raises OutOfTimeError: the budget is over. Raises _EnoughError: there were enough.
        """
        if strategy in self.refused:
            return None
        if strategy not in self.done:
            self._try(strategy)
        return self.done.get(strategy)

    def begin(self, leanest: Strategy, plainest: Strategy) -> None:
        """Simulate what keeps least, which says most where time is short; or the plainest.

        Raises InputError: neither can run the job. Raises UnsupportedError: the same. Raises
        OutOfTimeError: the budget is over.
        """
        try:
            self(leanest)
        except (InputError, UnsupportedError):
            self(plainest)

    def _try(self, strategy: Strategy) -> None:
        if len(self.done) >= MAX_SIMULATIONS:
            raise _EnoughError
        self._budget.check()
        self._tell(strategy)

        def go_on() -> None:
            self._budget.check()
            if self._told_s - self._budget.left_s >= TELL_EVERY_S:
                self._tell(strategy)

        try:
            check_strategy(self._job, strategy)
            self.done[strategy] = attempt(
                self._job, self._cluster, strategy, on_op=go_on, may_grow=True
            )
        except (InputError, UnsupportedError) as error:
            if not self.done:
                raise
            self.refused[strategy] = error

    def _tell(self, trying: Strategy) -> None:
        self._told_s = self._budget.left_s
        best = self.best()
        self._watch(SearchState(len(self.done), self.num_most, trying, best, self._told_s))

    def best(self) -> Attempt | None:
        """Return the best that was found, or the nearest to fitting; None before the first."""
        found = list(self.done.values())
        if not found:
            return None
        first = int(rank(_tabulate(self._job, found), objective=self._objective)[0])
        return found[first]

    def fits(self, strategy: Strategy) -> bool:
        """Whether a strategy can run the job, and holds; where ``takes_tight`` whether it may."""
        tried = self(strategy)
        return tried is not None and self.takes(tried)

    def takes(self, tried: Attempt) -> bool:
        """Whether what was simulated holds; where ``takes_tight`` whether it may.

        Its own strategy may say that segments grow, by which nothing was simulated.
        """
        return tried.holds or (self.takes_tight and not tried.short_bytes)


def solve_by_simulation(  # noqa: PLR0913 - what ``search.solve`` takes, and who watches
    job: Job,
    cluster: Cluster,
    pins: Pins,
    *,
    attention: Attention,
    objective: Objective,
    budget: Budget,
    watch: Watch,
) -> Solution:
    """Search strategies for a job that no formula covers; see ``search.solve``.

    ``objective``: ``time``: the fastest that fits. ``memory``: the smallest peak. ``budget``:
    seconds after which it ends, with what it has found. ``watch``: told of every simulation, and of
    the time as it passes. Returns the best plan that was simulated, without an estimate, and the
    record of the search, which says what was left where the budget, the most simulations or Ctrl-C
    ended it. Raises InputError: a pinned value cannot run this job. Raises UnsupportedError: this
    version cannot run it.
    """
    plainest, sizes = plainest_strategy(job, pins, attention, cluster.num_devices)
    is_smallest = objective == "memory"
    chunks = chunks_of(job, pins, CHUNKS)
    space = _Space(chunks, _kinds(job, pins), sizes[:1] if is_smallest else sizes)
    attempts = _Attempts(job, cluster, budget, objective=objective, watch=watch)
    if is_smallest or len(space.kinds) == 1:  # else counts of blocks are looked at too
        attempts.num_most = min(MAX_SIMULATIONS, space.size)
    why = ""
    try:
        attempts.begin(_leanest(space, plainest)[0], plainest)
        explore = _explore_smallest if is_smallest else _explore_fastest
        explore(job, space, plainest, attempts)
        if not any(done.holds for done in attempts.done.values()):
            attempts.takes_tight = True
            explore(job, space, plainest, attempts)
    except _EnoughError:
        why = f"{MAX_SIMULATIONS} simulations are the most"
    except OutOfTimeError as error:
        if not attempts.done:
            raise OutOfTimeError(_nothing_known(plainest, budget)) from error
        why = f"the budget of {budget.seconds:g} s was over"
    except KeyboardInterrupt:
        if not attempts.done:
            raise
        why = INTERRUPTED
    untried = _untried(why, space, attempts) if why else None
    return _solution(job, cluster, list(attempts.done.values()), objective, untried)


def _nothing_known(strategy: Strategy, budget: Budget) -> str:
    return (
        f"the search found nothing in its budget of {budget.seconds:g} s, in which not one "
        f"strategy was simulated ({spell(strategy)} was the first), so that nothing is known of "
        f"what fits; give a larger --budget"
    )


def _untried(why: str, space: _Space, attempts: _Attempts) -> Untried:
    """Say what was neither simulated nor decided by what was."""
    fits = {(*way_of(s), s.micro_batch): attempts.fits(s) for s in list(attempts.done)}
    fits |= {(*way_of(s), s.micro_batch): False for s in attempts.refused}
    num_left, ways = 0, []
    for way in product(space.chunks, space.kinds):
        known = {size: fits[*way, size] for size in space.sizes if (*way, size) in fits}
        too_large = min((n for n, does in known.items() if not does), default=math.inf)
        enough = max((n for n, does in known.items() if does), default=0)
        num_left += sum(enough < n < too_large for n in space.sizes)
        if not known:
            ways.append(spell_way(*way))
    is_some = any(":" in strategy.activation_checkpointing for strategy in attempts.done)
    if attempts.num_most == MAX_SIMULATIONS and len(space.kinds) > 1 and not is_some:
        ways.append(SOME_BLOCKS)
    return Untried(why=why, num_strategies=num_left, num_most=space.size, ways=tuple(ways))


def _explore_smallest(_job: Job, space: _Space, plainest: Strategy, attempts: _Attempts) -> None:
    """Simulate what may have the smallest peak: the smallest micro-batch in every way."""
    for chunks, kind in product(space.chunks, space.kinds):
        attempts(_with(plainest, loss_chunks=chunks, activation_checkpointing=kind))


def _explore_fastest(job: Job, space: _Space, plainest: Strategy, attempts: _Attempts) -> None:
    """Simulate what may be the fastest, the likeliest first; stop where nothing can be faster."""
    sizes = space.sizes
    if not any(map(attempts.fits, (*_leanest(space, plainest), plainest))):
        return
    for chunks in space.chunks:
        cut = _with(plainest, loss_chunks=chunks)
        largest = {}
        for kind in space.kinds:
            largest[kind] = _largest(sizes, _fits_at(cut, kind, attempts))
            if kind == space.kinds[0] and largest[kind] == sizes[-1]:
                return
        between = [n for n in sizes if largest.get("none", n) < n <= largest.get("full", 0)]
        for size in between:
            _fewest_blocks(job, _with(cut, micro_batch=size), attempts)


def _leanest(space: _Space, plainest: Strategy) -> list[Strategy]:
    """Return what keeps least: the smallest micro-batch, every block checkpointed.

    Chunks of the loss keep sums that one piece does not, so that neither end is the leaner always.
    """
    lean = _with(plainest, activation_checkpointing=space.kinds[-1])
    ends = sorted({space.chunks[0], space.chunks[-1]}, reverse=True)
    return [_with(lean, loss_chunks=chunks) for chunks in ends]


def _kinds(job: Job, pins: Pins) -> tuple[str, ...]:
    if pins.activation_checkpointing is not None:
        return (pins.activation_checkpointing,)
    if not job.model.num_layers:
        return KINDS[:1]
    may_keep = fused_of(pins) != "liger"  # what selective checkpoints keep is written over else
    return tuple(kind for kind in KINDS if may_keep or kind != "selective")


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
    fitting = [found for found in attempts.done.values() if attempts.takes(found)]
    if none.step_s is None:
        return all(a.strategy.activation_checkpointing != KINDS[0] for a in fitting)
    found = [a.step_s for a in fitting if a.step_s is not None]
    return none.step_s < min(found, default=np.inf)


def _with(strategy: Strategy, **changes: object) -> Strategy:
    return msgspec.structs.replace(strategy, **changes)


def _solution(
    job: Job,
    cluster: Cluster,
    attempts: list[Attempt],
    objective: Objective,
    untried: Untried | None,
) -> Solution:
    table = _tabulate(job, attempts)
    order = rank(table, objective=objective)
    best = attempts[order[0]]
    plan = Plan(
        schema=PLAN_SCHEMA,
        job=job,
        cluster=cluster,
        strategy=best.strategy,
        estimate=None,
    )
    found = record(
        table,
        order,
        rung="simulated",
        limit_bytes=tensor_limit_bytes(cluster),
        strategy=lambda row: attempts[row].strategy,
    )
    found = msgspec.structs.replace(found, untried=untried)
    return Solution(
        plan, found, reserved=best.reserved, host_bytes=best.host_bytes, items=best.items
    )


def _tabulate(job: Job, attempts: list[Attempt]) -> Table:
    """Lay out what was simulated; what is tight fits where nothing surely does."""
    is_sure = any(done.holds for done in attempts)
    num_layers = job.model.num_layers
    strategies = [done.strategy for done in attempts]
    return Table(
        **columns_of(strategies, num_layers=num_layers),
        peak_bytes=np.array([float(done.peak_bytes) for done in attempts]),
        step_s=np.array([np.nan if a.step_s is None else a.step_s for a in attempts]),
        fits=np.array([d.holds if is_sure else not d.short_bytes for d in attempts]),
    )


def simulated_shortfall(budget: Budget) -> Shortfall:
    """Return what ``search.tries.same_strategy`` evaluates with; it remembers what it simulated.

    A peak of live bytes hangs on whose kernels run and not on the size of the device, so that a
    device that is too small for it needs no simulation of its own.

    ``budget``: after which what it returns raises ``OutOfTimeError``.
    """
    peaks: dict[tuple[str, Strategy, str], int] = {}

    def shortfall(job: Job, cluster: Cluster, strategy: Strategy) -> int:
        key = (str(job), strategy, cluster.device.kernels)
        limit_bytes = tensor_limit_bytes(cluster)
        if peaks.get(key, 0) > limit_bytes:
            return peaks[key] - limit_bytes
        tried = attempt(job, cluster, strategy, on_op=budget.check)
        peaks[key] = tried.peak_bytes
        return tried.short_bytes

    return shortfall
