"""Where in a run it is: the step, and what of it is being done."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from brimful.build import phases
from brimful.build.loss import CHUNK
from brimful.values.strategy import Strategy

LOAD = "load"
"""Before the first phase of the first step."""


class Whereabouts:
    """Listens to the phases of a run.

    Attributes:
        strategy: How it is run now.
        step: The step in progress; 0 before the first.
        phase: The phase in progress, or the last one that was; ``load`` before the first.
    """

    def __init__(self, strategy: Strategy) -> None:
        """Nothing has begun.

        ``strategy``: how it is run at first.
        """
        self.strategy = strategy
        self.step, self.phase = 0, LOAD

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow what goes on inside the block."""
        with phases.listening(self._listen):
            yield

    def _listen(self, name: str, begins: bool, _program: Any) -> None:  # noqa: FBT001
        if begins and name != CHUNK:  # which is a part of a forward or a backward pass
            self.phase = name
