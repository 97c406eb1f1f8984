"""Whether a plan holds: its own program on the pretend GPU, the allocator replayed at capacity.

Live bytes below the limit are a bound: nothing above it can work. What the caching allocator makes
of them decides, so the best strategy of a search is simulated, and where it does not hold the next
best is, until one does. That none holds is said only where what takes least was looked at too: it
is simulated after enough of others; where time is over what has room for it is the plan, as it is
predicted.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from brimful.cost.estimate import estimate
from brimful.cost.outside import num_groups, room_of
from brimful.cost.reserved import predicted_reserved
from brimful.cost.stage_site import fullest_ranks
from brimful.errors import BrimfulError, OutOfTimeError, UnsupportedError
from brimful.pretend.recording import Recording
from brimful.search.budget import Budget
from brimful.search.holding import OTHER_ALLOCATORS, Held, held_at, looked_at
from brimful.search.solve import Solution, Space
from brimful.search.walk import Expected, Looked, before_row, roomiest, walk
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
        word: What holds; ``unproven`` behind trials: none of these, and time ended before another
            was simulated, which has room for what they lacked.
        trials: What was simulated, in order.
        chosen: Which of them is the plan; None: none.
        num_passed_over: Strategies that were not simulated, as one spread, cut and recomputed in
            the same way lacked more than they need less.
        why: What ended it early; empty: all that could be better was looked at.
        can_be_simulated: Whether nothing but time was lacking.
        has_room: Whether, unproven, it is not what was found but leaves the allocator more.
    """

    word: ProofWord
    trials: tuple[Trial, ...] = ()
    chosen: int | None = None
    num_passed_over: int = 0
    why: str = ""
    can_be_simulated: bool = True
    has_room: bool = False

    @property
    def nearest(self) -> Trial:
        """What lacks least of what was simulated."""
        return min(self.trials, key=lambda trial: trial.reserved.excess_bytes)


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
        trying.end(walk(found.space, trying.look))
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
        self._left: Solution | None = None
        self._why = ""
        self._can_be_simulated = True

    @property
    def _space(self) -> Space:
        space = self._found.space
        assert space is not None, "what was found by formulas"
        return space

    def look(self, row: int, num_passed: int) -> Looked | None:
        """Simulate the strategy of a row; see ``search.walk``."""
        space = self._space
        self.num_passed = num_passed
        if not self._trials:
            trial = self.tried(self._found.plan, row)
        elif (predicted := looked_at(space, row)) is not None and not predicted.fits:
            return predicted
        else:
            trial = self.tried(space.plan(row), row)
        if trial is None:
            return None
        excess_bytes = trial.excess_bytes
        return Looked(trial.reserved.word == "fits", lambda: excess_bytes)

    def end(self, expected: Expected) -> None:
        """Look at what takes least, where nothing holds and something ended a walk before it.

        ``expected``: what is expected of all after it.
        """
        if not self._why or not self._can_be_simulated or any(map(_completes, self._trials)):
            return
        space, is_late = self._space, self._budget.left_s <= 0
        row = roomiest(space, self._rows)
        if self._trials and not is_late and row is not None:
            held = held_at(space, row)
            if _may_hold(held) and self.tried(held.solution.plan, row, is_last=True) is None:
                self._left = held.solution  # it was not seen to its end
        elif self._trials or looked_at(space, self._found.row) is None:
            self._left = self._with_room(expected, row)

    def _with_room(self, expected: Expected, least: int | None) -> Solution | None:
        """Return the best with room for all that the allocator ever took, else what takes least.

        ``expected``: what is expected of all. ``least``: the row of what takes least; None: it was
        looked at.
        """
        space, made = self._space, self._found.plan.estimate
        band = None if made is None else made.predicted_peak_reserved_bytes
        rows = space.order()
        rows = rows[space.table.fits[rows] & (expected.lacks(rows) <= 0)]
        if made is None or band is None:
            return None
        firm = room_of(self._found.plan.cluster.device).firm_bytes
        most = band.high / made.predicted_peak_allocated_bytes * space.table.peak_bytes[rows]
        first = rows[most <= min(firm, made.usable_bytes)].tolist()[:1]
        for row in (*first, *(each for each in rows.tolist() if each == least)):
            if _may_hold(held := held_at(space, row)):
                return held.solution
        return None

    def tried(self, plan: Plan, row: int = 0, *, is_last: bool = False) -> Trial | None:
        """Simulate a plan; None where that is not to be, or cannot."""
        if len(self._trials) >= MAX_TRIALS and not is_last:
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
        if self._left is not None:
            return Proven(self._left, self._proof("unproven"))
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
            has_room=word == "unproven" and self._left is not None,
        )


def _completes(trial: Trial) -> bool:
    return trial.reserved.word != "no"


def _may_hold(held: Held) -> bool:
    """Whether a plan fits by its replay, or none is known of it."""
    return held.reserved is None or held.reserved.word == "fits"


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
