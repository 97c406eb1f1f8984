"""Ends a script whose time is over: its steps repeat, and a real one has thousands of them.

A step's memory is known once every optimizer has made its second one: the first makes the
optimizer's state, and the second finds it there. A script that is through is ended when its seconds
are over; one that is not has as long again, and what it took until then is the least that it takes.

It is ended before one of its operations, as whatever else ends a tape: never in between.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from brimful.pretend.report_values import ENOUGH_STEPS, Cut

if TYPE_CHECKING:
    from brimful.pretend.session import Run

PATIENCE = 2
"""Times its seconds that a script has where it is not through ``ENOUGH_STEPS``."""
_TOLD_EVERY_S = 10.0
_MOST_RAISED = 100
"""Times that a script is ended which takes that for an error of its own, before it is let run."""


class TimeIsOver(BaseException):
    """Raised in the script, where it asks for an operation."""


class TimeLimit:
    """Looks at the clock before every operation of a script.

    Attributes:
        cut: Where it was ended last; None: it was not.
    """

    def __init__(self, run: "Run", budget_s: float, told: Callable[[str], None]) -> None:
        """Begin to count.

        ``told``: is given a line now and then of where the script is.
        """
        self.cut: Cut | None = None
        self._run, self._budget_s, self._told = run, budget_s, told
        self._began_s = self._told_s = time.monotonic()
        self._num_raised = 0

    def check(self) -> None:
        """End the script where its time is over."""
        now_s = time.monotonic()
        spent_s = now_s - self._began_s
        if spent_s >= self._budget_s and self._num_raised < _MOST_RAISED:
            num_steps, phase = self._run.num_steps, self._run.tape.phase
            if num_steps >= ENOUGH_STEPS or spent_s >= PATIENCE * self._budget_s:
                self._num_raised += 1
                self.cut = Cut(seconds=round(spent_s), num_steps=num_steps, phase=phase)
                raise TimeIsOver
        if now_s - self._told_s >= _TOLD_EVERY_S:
            self._told_s = now_s
            self._told(f"{spent_s:.0f} s: in {self._run.tape.phase}")

    def ended(self, error: BaseException) -> bool:
        """Whether an error is that the time is over, or came of it."""
        seen: BaseException | None = error
        while seen is not None and not isinstance(seen, TimeIsOver):
            seen = seen.__cause__ or seen.__context__
        return seen is not None


@contextlib.contextmanager
def limited(run: "Run", budget_s: float, told: Callable[[str], None]) -> Iterator[TimeLimit]:
    """End what runs inside by ``TimeIsOver``.

    ``told``: is given a line now and then of where the script is.
    """
    limit = TimeLimit(run, budget_s, told)
    before, run.tape.on_op = run.tape.on_op, limit.check
    try:
        yield limit
    finally:
        run.tape.on_op = before
