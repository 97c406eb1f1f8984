"""The plan that holds: the best of a search whose requests, replayed, fit at capacity. No torch.

Live bytes below the limit are a bound; what the caching allocator makes of them decides. Simulating
(``simulate/proof.py``) asks the program itself the same question afterwards.
"""

from typing import NamedTuple

import msgspec

from brimful.cost.reserved import candidate_of
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
    every = _replays(space, row)
    return _looked(every) if every else None


class _Looking:
    """What was replayed so far."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._place = {int(row): place for place, row in enumerate(space.order())}
        self._looked: dict[int, PredictedReserved] = {}

    def look(self, row: int, _num_passed: int) -> Looked | None:
        """Replay the strategy of a row; see ``search.walk``."""
        space = self._space
        if len(self._looked) == MAX_REPLAYS:
            return None
        every = _replays(space, row)
        if not every:
            return None
        self._looked[row] = min(every, key=_shortage)
        return _looked(every)

    def of(self, row: int) -> PredictedReserved | None:
        """Return what the allocator makes of a row; None: not known."""
        return self._looked.get(row)

    def best(self) -> tuple[int, PredictedReserved] | None:
        """Return the first row that fits, else the first that is tight; None: none is either."""
        for word in ("fits", "tight"):
            rows = [row for row, each in self._looked.items() if each.word == word]
            if rows:
                row = min(rows, key=self._place.__getitem__)
                return row, self._looked[row]
        return None


def _replays(space: Space, row: int) -> list[PredictedReserved]:
    """Replay a row with PyTorch's settings, and with others where it does not fit; or as pinned."""
    strategy = space.strategy(row)
    candidate = candidate_of(space.job, space.cluster, strategy)
    if candidate is None:
        return []
    first = candidate.reserved(strategy.allocator)
    if strategy.allocator or first.word == "fits":
        return [first]
    return [first, *map(candidate.reserved, OTHER_ALLOCATORS)]


def _looked(every: list[PredictedReserved]) -> Looked:
    least = min(each.excess_bytes for each in every)
    return Looked(min(every, key=_shortage).word, least)


def _shortage(reserved: PredictedReserved) -> tuple[int, int, int]:
    """Order outcomes: the least short, then the fewest retries, then the least held."""
    return reserved.short_bytes, reserved.num_retries, reserved.predicted_peak_reserved_bytes


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
