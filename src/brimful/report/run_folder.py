"""Reading a run's folder back as one value. Owns the names of its files; computes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from brimful.cost.estimate import limit_bytes
from brimful.errors import FileFormatError
from brimful.files.writing import write_text
from brimful.measure.verdict import VERDICT_SCHEMA, Climbed, Verdict
from brimful.search.record import SEARCH_SCHEMA, SearchRecord
from brimful.text.escaping import shell_words
from brimful.text.mismatch import explain_mismatch
from brimful.train.metrics import read_metrics
from brimful.values.plan import Plan, read_plan
from brimful.values.results import MEASUREMENT_SCHEMA, SIMULATION_SCHEMA, Measurement, Simulation
from brimful.values.run_files import (
    COMMANDS_FILE,
    DATA_FILE,
    DATA_SCHEMA,
    EVENTS,
    MEASUREMENT_FILE,
    METRICS_FILE,
    PLAN_FILE,
    SEARCH_FILE,
    SIMULATION_FILE,
    VERDICT_FILE,
    DataSummary,
    EvalRow,
    Event,
    ExpertRow,
    Row,
    TakeoverRow,
    TrainRow,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """Everything that a run left behind; a part that is not there yet is None or empty.

    Attributes:
        run_dir: The folder.
        plan: What was to be run.
        simulation: The second rung.
        measurement: The third rung.
        verdict: The rungs compared.
        search: The strategies considered.
        train_rows: One per optimizer step, by step; of a step run twice, the last.
        eval_rows: One per evaluation, likewise.
        expert_rows: One per window of steps, of a mixture of experts.
        events: What else happened, in order: memory ran out, a process was lost, a checkpoint was
            damaged.
        data: What was trained on.
        commands: The command lines that made this folder, as they were typed.
    """

    run_dir: Path
    plan: Plan
    simulation: Simulation | None
    measurement: Measurement | None
    verdict: Verdict | None
    search: SearchRecord | None
    train_rows: tuple[TrainRow, ...]
    eval_rows: tuple[EvalRow, ...]
    expert_rows: tuple[ExpertRow, ...]
    events: tuple[Event, ...]
    data: DataSummary | None
    commands: tuple[str, ...]

    @property
    def takeovers(self) -> tuple[TakeoverRow, ...]:
        """One for each time that memory ran out, in order."""
        return tuple(row for row in self.events if isinstance(row, TakeoverRow))

    @property
    def rungs(self) -> Climbed:
        """The rungs that were climbed."""
        return Climbed(
            self.plan.estimate, self.simulation, self.measurement, limit_bytes(self.plan)
        )


class _Versioned(Protocol):
    @property
    def schema(self) -> str: ...


_Value = TypeVar("_Value", bound=_Versioned)
_Row = TypeVar("_Row", TrainRow, EvalRow, ExpertRow)


def read_run_folder(run_dir: Path) -> RunFolder:
    """Read every part of a run that is there.

    ``run_dir``: the folder that ``brimful train`` (or ``simulate``) wrote. Returns its parts; those
    that are not there are None or empty. Raises InputError: the plan was edited into something that
    cannot run.
    """
    if not run_dir.is_dir():
        raise FileFormatError(f"no run folder at {run_dir}; give the --out folder of brimful train")
    if not (run_dir / PLAN_FILE).is_file():
        raise FileFormatError(
            f"{run_dir} holds no {PLAN_FILE}, so it is not a run folder; "
            "give the --out folder of brimful train"
        )
    rows = _rows(run_dir / METRICS_FILE)
    return RunFolder(
        run_dir=run_dir,
        plan=read_plan(run_dir / PLAN_FILE),
        simulation=_read_part(run_dir / SIMULATION_FILE, Simulation, SIMULATION_SCHEMA, "simulate"),
        measurement=_read_part(
            run_dir / MEASUREMENT_FILE, Measurement, MEASUREMENT_SCHEMA, "train"
        ),
        verdict=_read_part(run_dir / VERDICT_FILE, Verdict, VERDICT_SCHEMA, "train"),
        search=_read_part(run_dir / SEARCH_FILE, SearchRecord, SEARCH_SCHEMA, "plan"),
        train_rows=_last_of_each_step([row for row in rows if isinstance(row, TrainRow)]),
        eval_rows=_last_of_each_step([row for row in rows if isinstance(row, EvalRow)]),
        expert_rows=_last_of_each_step([row for row in rows if isinstance(row, ExpertRow)]),
        events=tuple(row for row in rows if isinstance(row, EVENTS)),
        data=_read_part(run_dir / DATA_FILE, DataSummary, DATA_SCHEMA, "train"),
        commands=_read_commands(run_dir / COMMANDS_FILE),
    )


def record_command(run_dir: Path, argv: Sequence[str]) -> None:
    """Add a command line to those that made this folder, quoted so that a shell takes it back.

    Raises RunError: the folder cannot be written.
    """
    path = run_dir / COMMANDS_FILE
    line = shell_words(argv)
    write_text(path, "".join(f"{known}\n" for known in (*_read_commands(path), line)))


def _read_commands(path: Path) -> tuple[str, ...]:
    if not path.is_file():
        return ()
    return tuple(line for line in _read_text(path, "train").splitlines() if line.strip())


def _read_text(path: Path, verb: str) -> str:
    fix = f"delete it or run brimful {verb} again"
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not UTF-8 text (byte {error.start}); {fix}") from error
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read ({error.strerror}); {fix}") from error


def _read_part(path: Path, kind: type[_Value], schema: str, verb: str) -> _Value | None:
    if not path.is_file():
        return None
    fix = f"delete it or run brimful {verb} again"
    try:
        value = msgspec.json.decode(_read_text(path, verb), type=kind)
    except msgspec.ValidationError as error:
        raise FileFormatError(f"{path}: {explain_mismatch(error, kind)}, or {fix}") from error
    except msgspec.DecodeError as error:
        raise FileFormatError(f"{path} is not JSON ({error}); {fix}") from error
    if value.schema != schema:
        raise FileFormatError(
            f"{path} has schema {value.schema!r} and this version reads {schema!r}; {fix}"
        )
    return value


def _rows(path: Path) -> tuple[Row, ...]:
    return read_metrics(path) if path.is_file() else ()


def _last_of_each_step(rows: list[_Row]) -> tuple[_Row, ...]:
    # A resumed run repeats the steps since its checkpoint; what counts is what it went on from.
    by_step = {row.step: row for row in rows}
    return tuple(by_step[step] for step in sorted(by_step))
