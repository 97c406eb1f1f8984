"""The time that a search may take, by a clock that is given. Knows nothing of what is searched."""

import time
from collections.abc import Callable

from brimful.errors import OutOfTimeError

Clock = Callable[[], float]
"""Returns seconds that never run backwards."""


class Budget:
    """Seconds from now on; whoever works long asks in between whether some are left."""

    def __init__(self, seconds: float, *, clock: Clock = time.monotonic) -> None:
        """Start to count."""
        self.seconds = seconds
        self._clock = clock
        self._end_s = clock() + seconds

    @property
    def left_s(self) -> float:
        """Seconds that are left; 0 where none are."""
        return max(0.0, self._end_s - self._clock())

    def check(self) -> None:
        """Do nothing while some are left."""
        if self._clock() >= self._end_s:
            raise OutOfTimeError(
                f"the budget of {self.seconds:g} s is over; give a larger --budget"
            )
