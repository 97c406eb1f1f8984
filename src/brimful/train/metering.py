"""What measures the first steps of a run, as the loop sees it."""

from pathlib import Path
from typing import Protocol

import msgspec

from brimful.build.program import Program
from brimful.train.world import numbers_of_all

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


class _Peak(msgspec.Struct):
    """Of a measurement, or of what a meter has read, the one number that a run shows."""

    measured_peak_allocated_bytes: int


def measured_before(path: Path) -> int | None:
    """Return the peak in bytes that an earlier process of a run measured; None where none did.

    ``path``: of the run's measurement, which is that of the strategy it has now.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Peak).measured_peak_allocated_bytes
    except (OSError, msgspec.MsgspecError):
        return None  # it is measured again


def measured_peak(meter: Meter) -> int | None:
    """Return the highest peak in bytes that the meters of all processes have read.

    ``meter``: after ``stop``; of many processes all call this. None is known of one that has no
    ``reading``.
    """
    reading = getattr(meter, "reading", None)
    own = 0 if reading is None else reading.measured_peak_allocated_bytes
    highest = int(max(peak for (peak,) in numbers_of_all([own])))
    return highest or None


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
