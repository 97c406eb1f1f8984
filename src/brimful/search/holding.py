"""The plan that holds: the best of a search whose requests, replayed, fit at capacity. No torch.

Live bytes below the limit are a bound; what the caching allocator makes of them decides. Simulating
(``simulate/proof.py``) asks the program itself the same question afterwards.
"""

from typing import NamedTuple

import msgspec
import numpy as np

from brimful.cost.reserved import Candidate, candidate_of, shortage
from brimful.plan import PredictedReserved
from brimful.search.solve import Solution, Space
from brimful.search.walk import Looked, before_row, walk

OTHER_ALLOCATORS = ("expandable_segments:True",)
"""Settings tried where a strategy does not fit with PyTorch's own; they change no mathematics."""
MAX_REPLAYS = 32
"""Strategies replayed at most, a tenth of a second to one each."""


class Held(NamedTuple):
    """A solution, and what the allocator makes of its plan.

    Attributes:
        solution: The best strategy that fits, else the best that is tight, else what was found.
        reserved: Of its plan; None: its sequence is not known, or it does not fit as it is.
    """

    solution: Solution
    reserved: PredictedReserved | None


def hold(found: Solution) -> Held:
    """Replay the best strategy of a search, and the next ones while none holds."""
    if found.space is None or not found.record.rows[0].fits:
        return Held(found, None)
    looking = _Looking(found.space)
    walk(found.space, looking.look)
    best = looking.best()
    if best is None:
        return Held(_with_reserved(found, looking.of(found.row)), looking.of(found.row))
    row, reserved = best
    space = found.space
    solution = found if row == found.row else space.without(before_row(space, row)).best()
    return Held(_with_reserved(solution, reserved), reserved)


def looked_at(space: Space, row: int) -> Looked | None:
    """Replay the strategy of a row; None where its sequence of requests is not known."""
    looking = _Looking(space)
    return looking.look(row, 0)


class _Looking:
    """What was replayed so far, on cards without end: whether it fits is all that a walk asks."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._looked: dict[int, Candidate] = {}
        self._fitting: dict[int, str] = {}

    def look(self, row: int, _num_passed: int) -> Looked | None:
        """Replay the strategy of a row; see ``search.walk``."""
        space = self._space
        if len(self._looked) == MAX_REPLAYS:
            return None
        candidate = candidate_of(space.job, space.cluster, space.strategy(row))
        if candidate is None:
            return None
        self._looked[row] = candidate
        excess: list[int] = []
        for allocator in self._allocators(row):
            excess.append(candidate.excess_bytes(allocator))
            if not excess[-1]:
                self._fitting[row] = allocator
                break
        return Looked(row in self._fitting, min(excess))

    def best(self) -> tuple[int, PredictedReserved] | None:
        """Return the first row that fits, else the first that is tight; None: none is either."""
        order = self._space.order()
        looked = order[np.isin(order, list(self._looked))].tolist()
        row = next((row for row in looked if row in self._fitting), None)
        if row is not None:
            return row, self._looked[row].reserved(self._fitting[row])
        for row in looked:
            reserved = self.of(row)
            if reserved is not None and reserved.word == "tight":
                return row, reserved
        return None

    def of(self, row: int) -> PredictedReserved | None:
        """Return what the best of the allocators makes of a row; None: it was not looked at."""
        if row not in self._looked:
            return None
        return min(map(self._looked[row].reserved, self._allocators(row)), key=shortage)

    def _allocators(self, row: int) -> tuple[str, ...]:
        """Return the settings that are tried: what is pinned, else PyTorch's and others."""
        pinned = self._space.strategy(row).allocator
        return (pinned,) if pinned else (pinned, *OTHER_ALLOCATORS)


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
