"""Whether a plan holds: its own program on the pretend GPU, the allocator replayed at capacity.

Live bytes below the limit are a bound: nothing above it can work. What the caching allocator makes
of them decides, so the best strategy of a search is simulated, and where it does not hold the next
best is, until one does.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from brimful.cost.estimate import estimate
from brimful.errors import OutOfTimeError, UnsupportedError
from brimful.plan import Plan
from brimful.pretend.recording import Recording
from brimful.rungs import Reserved, Word
from brimful.search.budget import Budget
from brimful.search.solve import Solution, Space
from brimful.simulate.capacity import reserve_for
from brimful.simulate.run import ranks_of_row, simulate_recorded
from brimful.strategy import Strategy

OTHER_ALLOCATORS = ("expandable_segments:True",)
"""Settings tried where a strategy does not fit with PyTorch's own; they change no mathematics."""
MAX_TRIALS = 8
"""Strategies simulated at most."""

ProofWord = Word | Literal["unproven"]
"""``no``: none of those simulated holds. ``unproven``: time ended before any was."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A strategy that was simulated, with the allocator that did best.

    Attributes:
        strategy: The strategy, its allocator among it.
        reserved: What the allocator made of it.
    """

    strategy: Strategy
    reserved: Reserved


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What simulating said of a search.

    Attributes:
        word: What holds.
        trials: What was simulated, in order; the plan is the last, or where nothing fits the first
            that is tight.
        num_passed_over: Strategies that were not simulated, as one spread, cut and recomputed in
            the same way fell short by more than they need less.
        why: What ended it early; empty: a strategy that fits was found, or all were looked at.
    """

    word: ProofWord
    trials: tuple[Trial, ...]
    num_passed_over: int
    why: str


class Proven(NamedTuple):
    """A solution, and its proof."""

    solution: Solution
    proof: Proof


def prove(
    found: Solution, budget: Budget, *, watch: Callable[[Strategy, int], None] | None = None
) -> Proven:
    """Simulate the best strategy of a search, and the next ones while none holds.

    Args:
        found: What was found by formulas.
        budget: When to end.
        watch: Told of each strategy before it is simulated, and of how many were.

    Returns:
        The best that fits, else the best that is tight, else what was found; and the proof.
    """
    best, space, why = found, found.space, ""
    trials: list[Trial] = []
    num_passed, tight = 0, None
    while best.record.rows[0].fits:
        if len(trials) == MAX_TRIALS:
            why = f"{MAX_TRIALS} strategies were simulated"
            break
        if watch is not None:
            watch(best.plan.strategy, len(trials))
        try:
            trial = _tried(best.plan, budget)
        except OutOfTimeError:
            why = f"the budget of {budget.seconds:g} s was over"
            break
        except UnsupportedError as error:  # a formula covers what is not simulated
            why = str(error)
            break
        trials.append(trial)
        if trial.reserved.word == "fits":
            return _proven(best, trial, _proof("fits", trials, num_passed))
        if tight is None and trial.reserved.word == "tight":
            tight = best, trial
        if space is None:
            break
        gone = _beyond(space, best.row, trial.reserved.short_bytes)
        num_passed += int(gone.sum()) - 1
        space = space.without(gone)
        best = space.best()
    if tight is not None:
        return _proven(*tight, _proof("tight", trials, num_passed, why))
    return Proven(found, _proof("no" if trials else "unproven", trials, num_passed, why))


def _proof(word: ProofWord, trials: Sequence[Trial], num_passed_over: int, why: str = "") -> Proof:
    return Proof(word=word, trials=tuple(trials), num_passed_over=num_passed_over, why=why)


def _beyond(space: Space, row: int, short_bytes: int) -> NDArray[np.bool_]:
    """Tell which strategies do not hold if one does not: [strategies], itself among them.

    Those that are spread, cut and recomputed in the same way, and take less by no more than it fell
    short.
    """
    peaks = space.table.peak_bytes
    gone: NDArray[np.bool_] = (
        space.table.fits & space.alike(row) & (peaks > peaks[row] - short_bytes)
    )
    gone[row] = True
    return gone


def _tried(plan: Plan, budget: Budget) -> Trial:
    """Simulate a plan on every device of its row; where it does not fit, replay other allocators.

    Raises:
        OutOfTimeError: The budget is over.
        UnsupportedError: This version does not simulate it.
    """
    job, cluster, strategy = plan.job, plan.cluster, plan.strategy
    ranks = ranks_of_row(strategy) if strategy.pp > 1 else [None]
    simulated = [
        simulate_recorded(job, cluster, strategy, rank=rank, on_op=budget.check) for rank in ranks
    ]
    best = _of_row(strategy, [each.simulation.reserved for each in simulated])
    if strategy.allocator or best.reserved.word == "fits":
        return best
    recordings = [each.recording for each in simulated]
    others = [_replayed(plan, recordings, each) for each in OTHER_ALLOCATORS]
    return min(best, *others, key=lambda trial: _shortage(trial.reserved))


def _replayed(plan: Plan, recordings: Sequence[Recording], allocator: str) -> Trial:
    strategy = msgspec.structs.replace(plan.strategy, allocator=allocator)
    each = [reserve_for(one, plan.cluster, allocator=allocator) for one in recordings]
    return _of_row(strategy, each)


def _of_row(strategy: Strategy, each: Sequence[Reserved | None]) -> Trial:
    """Return what becomes of the device of a row that fares worst; None is of a CPU."""
    found = [reserved for reserved in each if reserved is not None]
    return Trial(strategy=strategy, reserved=max(found, key=_shortage))


def _shortage(reserved: Reserved) -> tuple[int, int, int]:
    """Order outcomes: the least short, then the fewest retries, then the least held."""
    return reserved.short_bytes, reserved.num_retries, reserved.simulated_peak_reserved_bytes


def _proven(best: Solution, trial: Trial, proof: Proof) -> Proven:
    """Return a solution with the allocator that its proof took."""
    strategy, plan = trial.strategy, best.plan
    made = estimate(plan.job, plan.cluster, strategy)
    first, *others = best.record.rows
    first = msgspec.structs.replace(first, strategy=strategy)
    record = msgspec.structs.replace(best.record, rows=(first, *others))
    plan = msgspec.structs.replace(plan, strategy=strategy, estimate=made)
    return Proven(best._replace(plan=plan, record=record), proof)
