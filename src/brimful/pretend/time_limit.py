"""Ends a script whose time is over: its steps repeat, and a real one has thousands of them.

A step's memory is known once every optimizer has made its second one: the first makes the
optimizer's state, and the second finds it there. A script that is through is ended when its seconds
are over; one that is not has as long again, and what it took until then is the least that it takes.

One is ended sooner, unless all of it was asked for, where several steps in a row were alike, or
left the same behind: what any further one takes is known then (``like_steps.py``).

Before that what its steps read is said to be over, where a ``DataLoader`` gives it: what comes
behind its loop is run then (``data_over.py``).

It is ended before one of its operations, as whatever else ends a tape: never in between.

What is known before that is said at once: that the card is full, or what a whole step took.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from brimful.errors import BrimfulError
from brimful.pretend.data_over import following_data
from brimful.pretend.like_steps import FEWEST_ALIKE, LikeSteps, holder
from brimful.pretend.recording import SELECTS_ALL
from brimful.pretend.report import capacity_of
from brimful.pretend.step_values import BUDGET_S, ENOUGH_STEPS, Cut
from brimful.text.escaping import one_line
from brimful.units import format_bytes

if TYPE_CHECKING:
    from brimful.pretend.session import Run

ALIKE_S = 8.0
"""Of this process's own time, before a script of like steps is ended: what follows them is seen of
short ones."""
SLOW_S = 2 * ALIKE_S
"""After which fewer of them do."""
PATIENCE = 2
"""Times its seconds that a script has where it is not through ``ENOUGH_STEPS``."""
_MOST_SAID = 120
"""Of what an error says."""
_GRACE = 1.5
"""Times its seconds that a script has where its data is over."""
_MOST_MORE = 3
"""Steps after its data is over, of a script that goes on: more are of no loop over them."""
_LONG_S = 8.0
"""Of this process's own time, after which one more is enough."""
_TOLD_EVERY_S = 10.0
_FIRST_S = 1.0
"""Of this process's own time, from which something is said before a script is ended."""
_CPU_EVERY_S = 0.05
"""Between two looks at this process's own time, which is asked of the system."""
_MOST_RAISED = 100
"""Times that a script is ended which takes that for an error of its own, before it is let run."""


class TimeIsOver(BaseException):
    """Raised in the script, where it asks for an operation."""


class Limits(NamedTuple):
    """How long a script may run.

    Attributes:
        budget_s: Seconds that it has.
        most_steps: After which it is ended whatever its time is; None: none.
        is_whole: Whether it runs on where its steps are alike, and every token of its texts runs.
        capacity_bytes: What it may take at most; None: all that the card leaves it.
    """

    budget_s: float = BUDGET_S
    most_steps: int | None = None
    is_whole: bool = False
    capacity_bytes: int | None = None


class TimeLimit:
    """Looks at the clock before every operation of a script.

    Attributes:
        cut: Where it was ended last; None: it was not.
    """

    def __init__(self, run: "Run", limits: Limits, told: Callable[[str], None]) -> None:
        """Begin to count.

        ``told``: is given a line now and then of where the script is.
        """
        self.cut: Cut | None = None
        self._run, self._told, self._limits = run, told, limits
        self._steps = None if limits.is_whole else LikeSteps(run)
        self._began_s = self._told_s = time.monotonic()
        self._cpu_began_s, self._cpu_s, self._cpu_seen_s = time.process_time(), 0.0, self._began_s
        self._num_told, self._full_in = 0, ""
        self._room = capacity_of(run.card.usable_bytes, limits.capacity_bytes)
        self._num_raised = self._num_alike = 0
        self._over_at: int | None = None
        self._over_cpu_s = 0.0

    def check(self) -> None:
        """End the script where its time is over, or nothing is learnt by running on."""
        now_s = time.monotonic()
        spent_s = now_s - self._began_s
        tape = self._run.tape
        if tape.main.live_bytes > self._room and not self._full_in:
            selects = any(line.endswith(SELECTS_ALL) for line in tape.assumptions)
            self._full_in = "" if selects else tape.phase
        if now_s - self._cpu_seen_s >= _CPU_EVERY_S:
            self._cpu_seen_s, self._cpu_s = now_s, time.process_time() - self._cpu_began_s
            self._tell_first()
        if self._num_raised < _MOST_RAISED and self._is_over(spent_s):
            self._num_raised += 1
            grows = self._steps is not None and self._steps.do_grow
            is_known = self._over_at is not None or self._is_known()
            held_by = holder() if grows else ""
            self.cut = self._cut(is_known=is_known, held_by=held_by)
            raise TimeIsOver
        if now_s - self._told_s >= _TOLD_EVERY_S:
            self._told_s = now_s
            self._told(f"{spent_s:.0f} s: in {self._run.tape.phase}")

    def _tell_first(self) -> None:
        """Say that the card is full, or that a whole step is over, as soon as it is."""
        if self._cpu_s < _FIRST_S or self._num_told > 1:
            return
        room = format_bytes(self._room)
        if self._full_in:
            self._num_told = 2
            self._told(f"at first: NO, more than {room} of tensors in {self._full_in}")
        elif not self._num_told and self._run.num_steps:
            self._num_told = 1
            peak = format_bytes(self._run.tape.main.peak_bytes)
            self._told(f"at first: {peak} of tensors, of {room}, in step 1")

    def _is_over(self, spent_s: float) -> bool:
        num_steps = self._run.num_steps
        if self._limits.most_steps is not None and num_steps >= self._limits.most_steps:
            return True
        if self._over_at is not None:
            is_slow = self._cpu_s - self._over_cpu_s >= _LONG_S
            if num_steps > self._over_at + (1 if is_slow else _MOST_MORE):
                return True  # its steps are not those of a loop over its data
        is_late = spent_s >= self._limits.budget_s
        if self._over_at is None and (self._is_known() or (is_late and num_steps >= ENOUGH_STEPS)):
            return not self._passes_over()
        if self._over_at is not None:
            return spent_s >= _GRACE * self._limits.budget_s
        return spent_s >= PATIENCE * self._limits.budget_s

    def _passes_over(self) -> bool:
        """Let the data of a script be over; False: there is none, or something grows with it."""
        steps = self._steps
        if steps is None or steps.do_grow or not steps.data.be_over():
            return False
        self._over_at, self._over_cpu_s = self._run.num_steps, self._cpu_s
        self._num_alike = steps.num_alike if steps.are_alike(FEWEST_ALIKE) else 0
        return True

    def _cut(self, *, is_known: bool, held_by: str = "", is_passed: bool = False) -> Cut:
        alike = self._steps.num_alike if self._steps is not None and is_known else 0
        return Cut(
            seconds=round(time.monotonic() - self._began_s),
            num_steps=self._run.num_steps,
            phase=self._run.tape.phase,
            num_alike=alike if self._over_at is None else self._num_alike,
            is_passed=is_passed,
            held_by=held_by,
        )

    @property
    def passed(self) -> Cut | None:
        """Where the rest of a script's data was passed over that ran to its end; None: nowhere."""
        return None if self._over_at is None else self._cut(is_known=True, is_passed=True)

    def _is_known(self) -> bool:
        """Whether any further step would say the same again, as far as was worth waiting for."""
        steps = self._steps
        if steps is None:
            return False
        steps.look()
        if not steps.are_alike(FEWEST_ALIKE) and not steps.do_grow:
            return False
        if steps.do_grow:
            return self._cpu_s >= ALIKE_S and self._run.has_one_optimizer
        return self._cpu_s >= (ALIKE_S if steps.are_alike() else SLOW_S)

    def following_data(self) -> contextlib.AbstractContextManager[None]:
        """Return a block in which it is seen what gives the script its data."""
        return contextlib.nullcontext() if self._steps is None else following_data(self._steps.data)

    @property
    def known_event(self) -> int | None:
        """Of the recording, by which two whole steps are over; None: not looked for."""
        return None if self._steps is None else self._steps.known_event

    def ended(self, error: BaseException) -> bool:
        """Whether an error is that the time is over, or came of it, or may have."""
        # Behind its data, of which it had fewer rows than it counted on.
        if self._over_at is not None and self.cut is None and not isinstance(error, BrimfulError):
            said = f"{type(error).__name__}: {one_line(str(error))[:_MOST_SAID]}"
            self.cut = msgspec.structs.replace(self._cut(is_known=True), error=said)
            return True
        seen: BaseException | None = error
        while seen is not None and not isinstance(seen, TimeIsOver):
            seen = seen.__cause__ or seen.__context__
        return seen is not None


@contextlib.contextmanager
def limited(run: "Run", limits: Limits, told: Callable[[str], None]) -> Iterator[TimeLimit]:
    """End what runs inside by ``TimeIsOver``; the arguments are ``TimeLimit``'s."""
    limit = TimeLimit(run, limits, told)
    before, run.tape.on_op = run.tape.on_op, limit.check
    try:
        with limit.following_data():
            yield limit
    finally:
        run.tape.on_op = before
