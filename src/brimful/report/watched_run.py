"""A loop of the user's own that was watched, as a value and as a folder."""

from pathlib import Path

import msgspec

from brimful.errors import FileFormatError
from brimful.files.writing import write_text
from brimful.measure.verdict import Climbed, Verdict, judge_rungs
from brimful.text.escaping import json_text
from brimful.text.mismatch import explain_mismatch
from brimful.values.plan import Estimate
from brimful.values.results import Measurement, Simulation
from brimful.values.run_files import LoopRow

WATCHED_SCHEMA = "brimful.watched/1"
WATCHED_FILE = "watched.json"


class WatchedRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was seen of a loop, and what was computed for that very loop.

    Attributes:
        schema: ``WATCHED_SCHEMA``.
        title: What was trained, in words.
        machine: On what.
        usable_bytes: What tensors may take of it.
        num_parameters: Of the model, tied ones once.
        num_trained: Those that need gradients.
        settings: What the loop was told, by name, where it can be asked.
        estimate: The first rung: of Brimful's own loop with these settings; None where no formula
            covers them.
        not_predicted: Why there is none; empty where there is one.
        simulation: The second rung: this very loop on the pretend GPU; None where it was not run.
        not_simulated: Why it was not; empty where it was.
        measurement: The third rung.
        rows: One per log line, or per step.
    """

    schema: str
    title: str
    machine: str
    usable_bytes: int
    num_parameters: int
    num_trained: int
    settings: tuple[tuple[str, str], ...]
    estimate: Estimate | None
    not_predicted: str
    simulation: Simulation | None
    not_simulated: str
    measurement: Measurement
    rows: tuple[LoopRow, ...]

    @property
    def rungs(self) -> Climbed:
        """The rungs that were climbed."""
        return Climbed(self.estimate, self.simulation, self.measurement, self.usable_bytes)

    @property
    def verdict(self) -> Verdict:
        """The rungs compared."""
        return judge_rungs(self.rungs)


def write_watched(run: WatchedRun, folder: Path) -> Path:
    """Write a run's file, atomically.

    Raises RunError: the folder cannot be written.
    """
    path = folder / WATCHED_FILE
    write_text(path, json_text(run, indent=2) + "\n")
    return path


def is_watched(folder: Path) -> bool:
    """Whether a folder holds a run that was watched, rather than one of ours."""
    return (folder / WATCHED_FILE).is_file()


def read_watched(folder: Path) -> WatchedRun:
    """Read a run back."""
    path = folder / WATCHED_FILE
    fix = "delete it and train again"
    try:
        run = msgspec.json.decode(path.read_bytes(), type=WatchedRun)
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read ({error.strerror})") from error
    except msgspec.ValidationError as error:
        raise FileFormatError(f"{path}: {explain_mismatch(error, WatchedRun)}, or {fix}") from error
    except msgspec.DecodeError as error:
        raise FileFormatError(f"{path} is not JSON ({error}); {fix}") from error
    if run.schema != WATCHED_SCHEMA:
        raise FileFormatError(
            f"{path} has schema {run.schema!r} and this version reads {WATCHED_SCHEMA!r}; {fix}"
        )
    return run
