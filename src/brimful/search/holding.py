"""The plan that holds: the best of a search whose requests, replayed, fit at capacity. No torch.

Live bytes below the limit are a bound; what the caching allocator makes of them decides. Simulating
(``simulate/proof.py``) asks the program itself the same question afterwards.
"""

import math
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from brimful.allocator.config import EXPANDABLE
from brimful.cost.reserved import Candidate, candidate_of, shortage
from brimful.hardware.cluster import Cluster
from brimful.search.rows import Found
from brimful.search.solve import Solution, Space
from brimful.search.walk import Looked, before_row, lead, roomiest, walk
from brimful.values.job import Job
from brimful.values.plan import PredictedReserved
from brimful.values.strategy import Strategy, recompute_of

OTHER_ALLOCATORS = (EXPANDABLE,)
"""Settings tried where a strategy does not fit with PyTorch's own; they change no mathematics."""
MAX_REPLAYS = 32
"""Strategies replayed at most.

Each takes 0.04 to 0.14 s of CPU of models of 1B to 70B, half of it to make its requests; where
another stream uses what one has, as with FSDP1 and DeepSpeed's stage 3, a request takes 1.5 to 1.8
times as long to replay.
"""


_LAYOUT = (
    "micro_batch", "zero", "dp_shard", "tp", "ep", "accumulate", "pp", "pp_schedule",
    "stages_per_device",
)  # fmt: skip


class Held(NamedTuple):
    """A solution, and what the allocator makes of its plan.

    Attributes:
        solution: The best strategy that fits, else the best that is tight, else what was found.
        reserved: Of its plan; None: its sequence is not known, or it does not fit as it is.
    """

    solution: Solution
    reserved: PredictedReserved | None


def hold(found: Solution) -> Held:
    """Replay the best strategy of a search, and the next ones while none holds.

    Of pipelines a search has the fastest only; where these do not hold it is asked for the next.
    """
    looking = _walked(found)
    return Held(found, None) if looking is None else looking.held(found)


def hold_firmly(found: Solution) -> Held | None:
    """Hold as ``hold`` does where something fits; None: nothing does, however near it comes.

    How near is not replayed, which takes most of the time where nothing fits.
    """
    looking = _walked(found)
    if looking is None:
        return Held(found, None)
    return None if looking.has_refused else looking.held(found)


def _walked(found: Solution) -> "_Looking | None":
    """Replay strategies of a search until one holds; None: by live bytes none does."""
    if found.space is None or not found.record.rows[0].fits:
        return None
    looking = _Looking(found.space)
    while not lead(looking.space, looking.look).is_ended and looking.widen():
        pass
    walk(looking.space, looking.look)
    return looking


def held_at(space: Space, row: int) -> Held:
    """Return the strategy of a row as what is best, and what the allocator makes of it.

    ``row``: of one that fits by its live bytes.
    """
    looking = _Looking(space)
    looking.look(row, 0)
    reserved = looking.of(row)
    found = space.without(before_row(space, row)).best()
    return Held(_with_reserved(found, reserved), reserved)


def as_it_fits(job: Job, cluster: Cluster, strategy: Strategy) -> Strategy | None:
    """Return a strategy with those settings of the allocator with which its replay fits.

    ``strategy``: how; one whose sequence of requests is not known is returned as it is. Returns
    None where it fits with none.
    """
    candidate = candidate_of(job, cluster, strategy)
    if candidate is None:
        return strategy
    allocator = _fitting(candidate, strategy)
    return None if allocator is None else msgspec.structs.replace(strategy, allocator=allocator)


def _fitting(candidate: Candidate, strategy: Strategy) -> str | None:
    """Return the first settings with which a replay fits; None: it does with none."""
    return next((each for each in allocators_of(strategy) if candidate.fits(each)), None)


def replayed(job: Job, cluster: Cluster, strategy: Strategy) -> tuple[int, Strategy]:
    """Return by how many bytes a strategy exceeds what is sure, and its settings; 0: it fits.

    ``strategy``: how; one whose sequence of requests is not known fits as it is.
    """
    candidate = candidate_of(job, cluster, strategy)
    if candidate is None:
        return 0, strategy
    excess, allocator = _least_excess(candidate, strategy)
    return excess, msgspec.structs.replace(strategy, allocator=allocator)


def _least_excess(candidate: Candidate, strategy: Strategy) -> tuple[int, str]:
    """Return by how many bytes a replay exceeds what is sure, and with which settings.

    They are tried in order, until it fits; of those that cannot fit the last only, which says how
    much is lacking.
    """
    found: list[tuple[int, str]] = []
    *others, last = allocators_of(strategy)
    for allocator in (*(each for each in others if not candidate.is_hopeless(each)), last):
        found.append((candidate.excess_bytes(allocator), allocator))
        if not found[-1][0]:
            break
    return min(found, key=lambda each: each[0])


def _excess_bytes(candidate: Candidate, strategy: Strategy) -> int:
    excess, _ = _least_excess(candidate, strategy)
    return excess


def allocators_of(strategy: Strategy) -> tuple[str, ...]:
    """Return the settings that are tried: what is pinned, else PyTorch's and others."""
    pinned = strategy.allocator
    return (pinned,) if pinned else (pinned, *OTHER_ALLOCATORS)


def looked_at(space: Space, row: int) -> Looked | None:
    """Replay the strategy of a row; None where its sequence of requests is not known."""
    looking = _Looking(space)
    return looking.look(row, 0)


class _Looking:
    """What was replayed so far, on cards without end: whether it fits is all that a walk asks."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._candidates: dict[int, Candidate] = {}
        self._fitting: dict[int, str] = {}
        self._looked: dict[int, Looked] = {}

    def look(self, row: int, _num_passed: int) -> Looked | None:
        """Replay the strategy of a row, once; see ``search.walk``."""
        if row in self._looked:
            return self._looked[row]
        if len(self._candidates) == MAX_REPLAYS:
            return None
        return self._replay(row)

    def roomiest(self) -> tuple[int, PredictedReserved] | None:
        """Look at what takes least, after as many looks as may be; None: it was, or is not known.

        Returns as ``best``.
        """
        if len(self._candidates) < MAX_REPLAYS:
            return None
        row = roomiest(self.space, self._candidates)
        return None if row is None or self._replay(row) is None else self.best()

    def _replay(self, row: int) -> Looked | None:
        space = self.space
        strategy = space.strategy(row)
        candidate = candidate_of(space.job, space.cluster, strategy)
        if candidate is None:
            return None
        self._candidates[row] = candidate
        allocator = _fitting(candidate, strategy)
        if allocator is not None:
            self._fitting[row] = allocator
        replayed = partial(_excess_bytes, candidate, strategy)
        self._looked[row] = Looked(allocator is not None, replayed)
        return self._looked[row]

    @property
    def has_refused(self) -> bool:
        """Whether all that is to be looked at was, and nothing fits."""
        return 0 < len(self._candidates) < MAX_REPLAYS and not self._fitting

    def held(self, found: Solution) -> Held:
        """Return the best of what was looked at, else what was found, and what comes of it."""
        best = self.best() or self.roomiest()
        if best is None:
            return Held(_with_reserved(found, self.of(found.row)), self.of(found.row))
        row, reserved = best
        space = self.space
        if row != found.row or space is not found.space:
            found = space.without(before_row(space, row)).best()
        return Held(_with_reserved(found, reserved), reserved)

    def widen(self) -> bool:
        """Add the pipelines that come next and could be better; whether there were any."""
        if len(self._candidates) == MAX_REPLAYS:
            return False
        times = self.space.table.step_s[list(self._fitting)]
        wider = self.space.with_more_pipelines(min(times, default=math.inf), self._is_hopeless)
        if wider is not None:
            self.space = wider
        return wider is not None

    def _is_hopeless(self, found: Found) -> bool:
        """Whether one that is spread, cut and recomputed alike lacked more than it needs less."""
        peaks = self.space.table.peak_bytes
        return any(
            not looked.fits
            and _is_alike(found.strategy, self.space.strategy(row))
            and found.peak_bytes >= peaks[row] - looked.excess_bytes
            for row, looked in self._looked.items()
        )

    def best(self) -> tuple[int, PredictedReserved] | None:
        """Return the first row that fits, else the first that is tight; None: none is either.

        Of tight ones those that give nothing back where little lies outside come before those that
        empty the cache even then: how slow that is no time says.
        """
        order = self.space.order()
        looked = order[np.isin(order, list(self._candidates))].tolist()
        row = next((row for row in looked if row in self._fitting), None)
        if row is not None:
            return row, self._candidates[row].reserved(self._fitting[row])
        first = None
        for row in looked:
            reserved = self.of(row)
            if reserved is None or reserved.word != "tight":
                continue
            if not reserved.num_retries:
                return row, reserved
            first = first or (row, reserved)
        return first

    def of(self, row: int) -> PredictedReserved | None:
        """Return what the best of the allocators makes of a row; None: it was not looked at."""
        if row not in self._candidates:
            return None
        return min(
            map(self._candidates[row].reserved, allocators_of(self.space.strategy(row))),
            key=shortage,
        )


def _is_alike(one: Strategy, other: Strategy) -> bool:
    """Whether two are spread, cut and recomputed in the same way, as ``Space.alike`` has it."""
    return recompute_of(one) == recompute_of(other) and all(
        getattr(one, name) == getattr(other, name) for name in _LAYOUT
    )


def _with_reserved(found: Solution, reserved: PredictedReserved | None) -> Solution:
    """Return a solution whose plan has these settings of the allocator, and says what they give."""
    plan = found.plan
    if reserved is None or plan.estimate is None:
        return found
    strategy = msgspec.structs.replace(plan.strategy, allocator=reserved.allocator)
    first, *others = found.record.rows
    first = msgspec.structs.replace(first, strategy=strategy)
    record = msgspec.structs.replace(found.record, rows=(first, *others))
    made = msgspec.structs.replace(plan.estimate, predicted_reserved=reserved)
    plan = msgspec.structs.replace(plan, strategy=strategy, estimate=made)
    return found._replace(plan=plan, record=record)
