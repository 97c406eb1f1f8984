"""Which process of a group takes the most memory, and which keeps the others waiting.

They wait for each other wherever they send something, so that a whole step takes all of them the
same time. What tells them apart is the time from the beginning of a step (its data read) to the end
of the first forward pass: under DDP nothing is sent until then. Under FSDP2 gathers are in it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from brimful.build import phases
from brimful.train.world import is_spread, numbers_of_all


class Ranks(NamedTuple):
    """The ends of a group in one step.

    Attributes:
        hottest: Rank with the highest peak so far; None in a process that trains alone.
        slowest: Rank that took longest to the end of its first forward pass; None likewise.
        used_bytes: Largest memory in use after the step.
        peak_bytes: Largest peak.
    """

    hottest: int | None
    slowest: int | None
    used_bytes: int
    peak_bytes: int


class FirstForward:
    """Takes the time to the end of a step's first forward pass, on the host."""

    def __init__(self) -> None:
        """Begin now."""
        self._start_s = time.perf_counter()
        self.seconds = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Listen for it inside the block; nothing listens where a process trains alone."""
        if not is_spread():
            yield
            return
        with phases.listening(self._listen):
            yield

    def _listen(self, name: str, begins: bool, _program: Any) -> None:  # noqa: FBT001
        if name == "forward" and not begins and not self.seconds:
            self.seconds = time.perf_counter() - self._start_s


def ends_of(seconds: float, used_bytes: int, peak_bytes: int) -> Ranks:
    """Compare this process's numbers with those of the others; all must call this.

    ``used_bytes``: in use after the step.
    """
    if not is_spread():
        return Ranks(None, None, used_bytes, peak_bytes)
    columns = list(zip(*numbers_of_all((seconds, used_bytes, peak_bytes)), strict=True))
    slow, used, peak = ([float(x) for x in column] for column in columns)
    return Ranks(peak.index(max(peak)), slow.index(max(slow)), int(max(used)), int(max(peak)))
