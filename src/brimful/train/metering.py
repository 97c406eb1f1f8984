"""What measures the first steps of a run, as the loop sees it."""

from typing import Protocol

from brimful.build.program import Program

NUM_METERED_STEPS = 2
"""The first step makes things ready, the second shows what every later one looks like."""


class Meter(Protocol):
    """What measures the first steps of a run from the outside."""

    def start(self) -> None:
        """Begin: nothing of the program exists yet."""

    def begin_again(self, program: Program) -> None:
        """Begin with a program that is there: the next steps are measured."""

    def stop(self, program: Program) -> None:
        """End: the first ``NUM_METERED_STEPS`` steps are done."""

    def abandon(self) -> None:
        """End, if that is not done: the run came to nothing."""


class NullMeter:
    """Measures nothing."""

    def start(self) -> None:
        """Do nothing."""

    def begin_again(self, program: Program) -> None:
        """Do nothing."""

    def stop(self, program: Program) -> None:
        """Do nothing."""

    def abandon(self) -> None:
        """Do nothing."""
