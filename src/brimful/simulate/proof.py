"""Whether a plan holds: its own program on the pretend GPU, the allocator replayed at capacity.

Live bytes below the limit are a bound: nothing above it can work. What the caching allocator makes
of them decides, so the best strategy of a search is simulated, and where it does not hold the next
best is, until one does.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from brimful.cost.estimate import estimate
from brimful.cost.outside import num_groups
from brimful.cost.reserved import predicted_reserved
from brimful.cost.stage_site import fullest_ranks
from brimful.errors import BrimfulError, OutOfTimeError, UnsupportedError
from brimful.pretend.recording import Recording
from brimful.search.budget import Budget
from brimful.search.holding import OTHER_ALLOCATORS, looked_at
from brimful.search.solve import Solution
from brimful.search.walk import Looked, before_row, walk
from brimful.simulate.capacity import reserve_for, shortage
from brimful.simulate.run import simulate_recorded
from brimful.values.plan import Plan, Word
from brimful.values.results import Reserved
from brimful.values.strategy import Strategy

MAX_TRIALS = 8
"""Strategies simulated at most."""

ProofWord = Word | Literal["unproven"]
"""``no``: none of those simulated holds. ``unproven``: time ended before any was."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A strategy that was simulated, with the allocator that did best.

    Attributes:
        strategy: The strategy, its allocator among it.
        reserved: What the allocator made of it.
        excess_bytes: What it would hold too much if nothing were given back, with the allocator
            that would hold least.
    """

    strategy: Strategy
    reserved: Reserved
    excess_bytes: int


Simulates = Callable[[Plan, Budget], Trial]
"""Simulates a plan; raises OutOfTimeError and UnsupportedError."""


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What simulating said of a search.

    Attributes:
        word: What holds.
        trials: What was simulated, in order.
        chosen: Which of them is the plan; None: none.
        num_passed_over: Strategies that were not simulated, as one spread, cut and recomputed in
            the same way lacked more than they need less.
        why: What ended it early; empty: all that could be better was looked at.
        can_be_simulated: Whether nothing but time was lacking.
    """

    word: ProofWord
    trials: tuple[Trial, ...] = ()
    chosen: int | None = None
    num_passed_over: int = 0
    why: str = ""
    can_be_simulated: bool = True


class Proven(NamedTuple):
    """A solution, and its proof."""

    solution: Solution
    proof: Proof


def prove(
    found: Solution,
    budget: Budget,
    *,
    watch: Callable[[Strategy, int], None] | None = None,
    simulates: Simulates | None = None,
) -> Proven:
    """Simulate the best strategy of a search, and the next ones while none holds.

    ``watch``: told of each strategy before it is simulated, and of how many were. ``simulates``:
    simulates a plan as another program runs it; None: as this one does. Returns the best that fits,
    else the best that is tight, else what was found; and the proof.
    """
    if not found.record.rows[0].fits:
        return Proven(found, Proof(word="unproven"))
    trying = _Trying(found, budget, watch, simulates or _tried)
    if found.space is None:
        trying.tried(found.plan)
    else:
        walk(found.space, trying.look)
    return trying.proven()


class _Trying:
    """What was simulated so far.

    Attributes:
        num_passed: How many strategies were passed over.
    """

    def __init__(
        self,
        found: Solution,
        budget: Budget,
        watch: Callable[[Strategy, int], None] | None,
        simulates: Simulates,
    ) -> None:
        self.num_passed = 0
        self._found, self._budget, self._watch = found, budget, watch
        self._simulates = simulates
        self._trials: list[Trial] = []
        self._rows: list[int] = []
        self._why = ""
        self._can_be_simulated = True

    def look(self, row: int, num_passed: int) -> Looked | None:
        """Simulate the strategy of a row; see ``search.walk``."""
        space = self._found.space
        assert space is not None
        self.num_passed = num_passed
        if not self._trials:
            trial = self.tried(self._found.plan, row)
        elif (predicted := looked_at(space, row)) is not None and not predicted.fits:
            return predicted
        else:
            trial = self.tried(space.plan(row), row)
        return None if trial is None else Looked(trial.reserved.word == "fits", trial.excess_bytes)

    def tried(self, plan: Plan, row: int = 0) -> Trial | None:
        """Simulate a plan; None where that is not to be, or cannot."""
        if len(self._trials) == MAX_TRIALS:
            self._why = f"{MAX_TRIALS} strategies were simulated"
            return None
        if self._watch is not None:
            self._watch(plan.strategy, len(self._trials))
        try:
            trial = self._simulates(plan, self._budget)
        except OutOfTimeError:
            self._why = f"the budget of {self._budget.seconds:g} s was over"
            return None
        except UnsupportedError as error:  # a formula covers what is not simulated
            self._why, self._can_be_simulated = str(error), False
            return None
        except BrimfulError:
            raise
        except Exception as error:  # noqa: BLE001 - a fault of ours, and the formulas' answer stands
            self._why = f"simulating it ended in a fault of Brimful's own: {error!r:.200}"
            self._can_be_simulated = False
            return None
        self._trials.append(trial)
        self._rows.append(row)
        return trial

    def proven(self) -> Proven:
        """Return the best that fits, else the best that is tight, else what was found.

        Of tight ones those that empty the cache come last, as in ``search.holding``.
        """
        for word in ("fits", "tight"):
            these = [i for i, each in enumerate(self._trials) if each.reserved.word == word]
            if these:
                calm = [i for i in these if not self._trials[i].reserved.num_retries]
                chosen = self._best(calm or these)
                return _proven(
                    self._solution(chosen), self._trials[chosen], self._proof(word, chosen)
                )
        return Proven(self._found, self._proof("no" if self._trials else "unproven"))

    def _best(self, these: list[int]) -> int:
        """Return the trial whose row comes first in the space."""
        if self._found.space is None:
            return these[0]
        order = self._found.space.order().tolist()
        return min(these, key=lambda trial: order.index(self._rows[trial]))

    def _solution(self, trial: int) -> Solution:
        """Return what was searched, without what comes before a trial's row."""
        space = self._found.space
        if space is None:
            return self._found
        return space.without(before_row(space, self._rows[trial])).best()

    def _proof(self, word: ProofWord, chosen: int | None = None) -> Proof:
        return Proof(
            word=word,
            trials=tuple(self._trials),
            chosen=chosen,
            num_passed_over=self.num_passed,
            why=self._why,
            can_be_simulated=self._can_be_simulated,
        )


def _tried(plan: Plan, budget: Budget) -> Trial:
    """Simulate a plan on every device of its row.

    Raises OutOfTimeError: the budget is over. Raises UnsupportedError: this version does not
    simulate it.
    """
    job, cluster, strategy = plan.job, plan.cluster, plan.strategy
    ranks = fullest_ranks(job, strategy) if strategy.pp > 1 else [None]
    simulated = [
        simulate_recorded(job, cluster, strategy, rank=rank, on_op=budget.check) for rank in ranks
    ]
    return tried_with(
        plan,
        [each.simulation.reserved for each in simulated],
        [each.recording for each in simulated],
    )


def tried_with(
    plan: Plan, reserved: Sequence[Reserved | None], recordings: Sequence[Recording]
) -> Trial:
    """Return what became of a plan; where it does not fit, replay other allocators."""
    strategy = plan.strategy
    best = _of_row(strategy, reserved)
    if strategy.allocator or best.reserved.word == "fits":
        return best
    others = [_replayed(plan, recordings, each) for each in OTHER_ALLOCATORS]
    chosen = min(best, *others, key=lambda trial: shortage(trial.reserved))
    least = min(trial.excess_bytes for trial in (best, *others))
    return msgspec.structs.replace(chosen, excess_bytes=least)


def _replayed(plan: Plan, recordings: Sequence[Recording], allocator: str) -> Trial:
    strategy = msgspec.structs.replace(plan.strategy, allocator=allocator)
    groups = num_groups(strategy)
    each = [
        reserve_for(one, plan.cluster, allocator=allocator, num_groups=groups) for one in recordings
    ]
    return _of_row(strategy, each)


def _of_row(strategy: Strategy, each: Sequence[Reserved | None]) -> Trial:
    """Return what becomes of the device of a row that fares worst; None is of a CPU."""
    found = [reserved for reserved in each if reserved is not None]
    return Trial(
        strategy=strategy,
        reserved=max(found, key=shortage),
        excess_bytes=max(reserved.excess_bytes for reserved in found),
    )


def _proven(best: Solution, trial: Trial, proof: Proof) -> Proven:
    """Return a solution with the allocator that its proof took."""
    strategy, plan = trial.strategy, best.plan
    asked = plan.job, plan.cluster, strategy
    made = msgspec.structs.replace(estimate(*asked), predicted_reserved=predicted_reserved(*asked))
    first, *others = best.record.rows
    first = msgspec.structs.replace(first, strategy=strategy)
    record = msgspec.structs.replace(best.record, rows=(first, *others))
    plan = msgspec.structs.replace(plan, strategy=strategy, estimate=made)
    return Proven(best._replace(plan=plan, record=record), proof)
