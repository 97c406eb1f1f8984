"""Ends a script whose time is over: its steps repeat, and a real one has thousands of them.

A step's memory is known once a second one is whole: the first makes the optimizer's state, and the
second finds it there. A script that is through two of them is ended when its seconds are over; one
that is not has as long again, and what it took until then is the least that it takes.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

from brimful.pretend.report_values import ENOUGH_STEPS, Cut

if TYPE_CHECKING:
    from brimful.pretend.session import Run

PATIENCE = 2
"""Times its seconds that a script has where it is not through ``ENOUGH_STEPS``."""
_TICK_S = 1.0
_TOLD_EVERY_S = 10.0
_AGAIN_S = 5.0
"""After which a script that took the end for an error of its own is ended once more."""
_STEP = "step "


class TimeIsOver(BaseException):
    """Raised in the script, from wherever it is."""


@contextlib.contextmanager
def limited(run: "Run", budget_s: float, told: Callable[[str], None]) -> Iterator[None]:
    """End what runs inside by ``TimeIsOver``, and keep in ``run.cut`` where that was.

    Where there are no alarms (outside the main thread, or on another system) nothing is ended.

    Args:
        run: The pretend GPU that it runs on.
        budget_s: Seconds that it has.
        told: Is given a line now and then of where the script is.
    """
    if not hasattr(signal, "setitimer"):
        yield
        return
    limit = _Limit(run, budget_s, told)
    try:
        before = signal.signal(signal.SIGALRM, limit.tick)
    except ValueError:  # not the main thread
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, _TICK_S, _TICK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


class _Limit:
    """Looks at a script once a second."""

    def __init__(self, run: "Run", budget_s: float, told: Callable[[str], None]) -> None:
        self._run, self._budget_s, self._told = run, budget_s, told
        self._began_s = self._told_s = time.monotonic()
        self._ended_s: float | None = None

    def tick(self, _signal: int, _frame: FrameType | None) -> None:
        now_s = time.monotonic()
        spent_s = now_s - self._began_s
        phase = self._run.tape.phase
        number = phase.removeprefix(_STEP).split()[0]
        num_steps = int(number) - 1 if phase.startswith(_STEP) else 0
        is_over = spent_s >= self._budget_s * (1 if num_steps >= ENOUGH_STEPS else PATIENCE)
        if is_over and (self._ended_s is None or now_s - self._ended_s >= _AGAIN_S):
            self._ended_s = now_s
            self._run.cut = Cut(seconds=round(spent_s), num_steps=num_steps, phase=phase)
            raise TimeIsOver
        if not is_over and now_s - self._told_s >= _TOLD_EVERY_S:
            self._told_s = now_s
            self._told(f"{spent_s:.0f} s: in {phase}")
