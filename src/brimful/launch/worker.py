"""One process of a run on many devices: joins the others, trains, and says how it ended."""

import atexit
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec
import torch.distributed as dist

from brimful.cost.estimate import limit_bytes
from brimful.errors import BrimfulError, FileFormatError, RunError
from brimful.files.writing import disk_error, write_text
from brimful.measure.limit import limited
from brimful.measure.meter import Meter, meter_for
from brimful.measure.reading import Reading
from brimful.text.escaping import json_text
from brimful.train import world
from brimful.train.loop import train
from brimful.train.metrics import add_row
from brimful.train.observers import Observer
from brimful.train.refit import refitted
from brimful.train.result import TrainResult
from brimful.train.settings import RunSettings
from brimful.train.takeover import (
    EXIT_CODE,
    NextPlan,
    ShortageError,
    Ways,
    forget_shortages,
    note_shortage,
    noted_shortage,
    rows_of,
    start_again,
    strategies_of,
)
from brimful.values.plan import Plan, read_plan
from brimful.values.run_files import (
    LAUNCH_FILE,
    METRICS_FILE,
    PLAN_FILE,
    Event,
    RestartRow,
    Row,
    TakeoverRow,
    TrainRow,
)
from brimful.values.run_words import describe_event
from brimful.values.strategy import world_size

FAILURES = ".failures"
"""Folder of a run in which a process that fails alone says why."""
_COLLECTIVE = ("gloo", "nccl", "timed out", "connection closed", "connection reset", "socket")


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a process failed: the name of its error's class, and its sentence."""

    kind: str
    text: str


class End(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended.

    Attributes:
        result: Of the run; None where it failed.
        readings: Of each process's meter, by rank; None where it measured nothing.
        failure: Why all of them stopped; None where the run came to its end.
    """

    result: TrainResult | None
    readings: tuple[Reading | None, ...]
    failure: Failure | None


class Patience(NamedTuple):
    """For how long, and how often, a run is kept going.

    Attributes:
        timeout_s: How long to wait for the others.
        max_restarts: How often the group may be started again because one was lost; None: whoever
            started it counts.
    """

    timeout_s: float = world.TIMEOUT_S
    max_restarts: int | None = None


PATIENCE = Patience()


def work(
    plan: Plan,
    settings: RunSettings,
    *,
    observer: Callable[[], Observer],
    next_plan: NextPlan | None = None,
    patience: Patience = PATIENCE,
) -> End:
    """Be one process of a run.

    An error that all processes share is an answer: the group is not started again. One that this
    process has alone is raised, and whoever started the group starts it again, or gives up.

    ``plan``: what is run; laid out anew where there are more or fewer processes than it is for.
    ``observer``: makes who watches in the first process; nobody does in the others. ``next_plan``:
    says what is tried when memory runs out; None: nothing. ``patience``: how long it waits for the
    others, and how often it is started again. Raises BrimfulError: this process failed alone; why
    is in the run's folder too. Raises SystemExit: it ran out of memory and is to be started again:
    ``takeover.EXIT_CODE``.
    """
    place = world.place_here()
    if place is None:
        raise RunError("this process was not started in a group; start it with torchrun")
    with world.joined(place, plan.cluster.device.kernels, timeout_s=patience.timeout_s):
        meter = meter_for(plan.cluster.device.kernels)
        try:
            with world.together():
                plan = refitted(plan, place.size)
            watching = observer() if world.is_first() else Nobody()
            begun = has_begun(settings.out, place)
            settings = msgspec.structs.replace(settings, resume=settings.resume or begun)
            again = resumed_plan(plan, settings, place, next_plan)
            with world.together():
                _check_losses(settings.out, place, patience.max_restarts)
                restarted = _note_restart(settings.out, place) if begun and not again.told else ()
            happened: tuple[Event, ...] = (*again.told, *restarted)
            for row in happened:
                watching.on_message(describe_event(row))
            result = _trained(again, settings, watching, meter, next_plan)
            readings = tuple(world.of_all(meter.reading))
        except ShortageError as error:
            note_shortage(settings.out, error.shortage)
            _leave(EXIT_CODE)
        except BrimfulError as error:
            failure = Failure(kind=type(error).__name__, text=str(error))
            if not world.was_agreed(error):
                _tell(settings.out, place.rank, failure)
                raise
            return End(result=None, readings=(), failure=failure)
        except RuntimeError as error:
            lost = _lost(error)
            if lost is None:
                raise
            _tell(settings.out, place.rank, Failure(kind="RunError", text=str(lost)))
            raise lost from error
    atexit.register(_leave)
    return End(result=result, readings=readings, failure=None)


def _trained(
    again: "Again",
    settings: RunSettings,
    observer: Observer,
    meter: Meter,
    next_plan: NextPlan | None,
) -> TrainResult:
    plan = again.plan
    limit = limit_bytes(plan) if settings.enforces_limit else None
    with limited(plan.cluster.device.kernels, limit):
        return train(plan, settings, observer=observer, meter=meter, ways=Ways(next_plan))


def checked(end: End) -> TrainResult:
    """Return the result of a run that came to its end.

    Raises BrimfulError: why all of its processes stopped.
    """
    if end.failure is not None:
        raise world.made_again(end.failure.kind, end.failure.text)
    assert end.result is not None  # one of the two is there
    return end.result


class Again(NamedTuple):
    """What is run, and that a strategy took over for it, where one did just now."""

    plan: Plan
    told: tuple[TakeoverRow, ...] = ()


def resumed_plan(
    plan: Plan, settings: RunSettings, place: world.Place, next_plan: NextPlan | None
) -> Again:
    """Return what a run goes on with: its own plan, or where memory ran out the next.

    Of many processes all call this; the first reads, asks and writes.

    Raises RunError: no strategy is left.
    """
    again = Again(plan)
    with world.together():
        if world.is_first() and settings.resume and next_plan is not None:
            again = _resumed_by_first(plan, settings.out, place.size, next_plan)
    return world.told_by_first(again)


def _resumed_by_first(plan: Plan, out: Path, num_devices: int, next_plan: NextPlan) -> Again:
    if strategies_of(rows_of(out)):  # whoever started it knows the plan that it began with
        known = read_plan(out / PLAN_FILE)
        plan = known if world_size(known.strategy) == num_devices else plan
    shortage = noted_shortage(out)
    if shortage is None:
        return Again(plan)
    plan, row = start_again(plan, shortage, out, Ways(next_plan))
    forget_shortages(out)
    return Again(plan, (row,))


def _check_losses(out: Path, place: world.Place, max_restarts: int | None) -> None:
    """Give up where processes were lost too often; that memory ran out is no loss."""
    lost = 0 if max_restarts is None else _num_losses(rows_of(out), place)
    if max_restarts is not None and lost > max_restarts:
        raise RunError(
            f"processes were lost {lost} times and the run was started again {max_restarts} times; "
            f"--resume goes on from the newest checkpoint in {out}"
        )


def _num_losses(rows: tuple[Row, ...], place: world.Place) -> int:
    took_over = [r for r in rows if isinstance(r, TakeoverRow) and r.launch == place.launch]
    return place.restart - sum(not row.in_place for row in took_over) if place.restart else 0


def _note_restart(out: Path, place: world.Place) -> tuple[RestartRow, ...]:
    """Write down that a process was lost; by the first process."""
    if not world.is_first():
        return ()
    rows = rows_of(out)
    row = RestartRow(
        step=max((row.step for row in rows if isinstance(row, TrainRow)), default=0),
        num_processes=place.size,
        restart=_num_losses(rows, place),
        reason="; ".join(failure.text for failure in told_failures(out)[:1]),
        launch=place.launch,
    )
    forget_failures(out)  # they are told; what ends the run later is another failure
    add_row(out / METRICS_FILE, row)
    return (row,)


def told_failures(out: Path) -> list[Failure]:
    """Read why processes failed alone, by their ranks.

    Raises FileFormatError: what one wrote is damaged.
    """
    return [_read_failure(path) for path in sorted((out / FAILURES).glob("*.json"))]


def forget_failures(out: Path) -> None:
    """Delete why processes failed."""
    for path in (out / FAILURES).glob("*.json"):
        path.unlink(missing_ok=True)


def _read_failure(path: Path) -> Failure:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Failure)
    except (OSError, msgspec.MsgspecError) as error:
        raise FileFormatError(f"{path} cannot be read ({error}); delete it") from error


def _leave(code: int = 0) -> NoReturn:
    """End the process without taking the interpreter apart.

    Threads of gloo now and then abort a process whose work is done (``terminate called without an
    active exception``), which whoever started it would take for a loss.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def has_begun(out: Path, place: world.Place) -> bool:
    """Whether this group was started again, and goes on where the one before it was lost.

    The group is another one when a machine leaves or comes, and no agent counts that as a restart;
    so the folder keeps the name of the launch that runs there.

    Raises BrimfulError: the folder cannot be read, in all processes.
    """
    lost_one = world.any_says(place.restart > 0)
    begun = False
    with world.together():
        if world.is_first():
            again = lost_one or _is_of_launch(out / LAUNCH_FILE, place.launch)
            begun = again and (out / PLAN_FILE).exists()
    return world.told_by_first(begun)


def _is_of_launch(path: Path, launch: str) -> bool:
    try:
        return bool(launch) and path.is_file() and path.read_text() == launch
    except OSError as error:
        raise disk_error(path, error) from error


def _tell(out: Path, rank: int, failure: Failure) -> None:
    folder = out / FAILURES
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{rank}.json", json_text(failure))


def _lost(error: RuntimeError) -> RunError | None:
    """Return what to say where a collective failed; None where it was something else."""
    reason = str(error).partition("\n")[0]
    is_collective = isinstance(error, dist.DistBackendError | dist.DistNetworkError) or any(
        word in reason.lower() for word in _COLLECTIVE
    )
    if not is_collective:
        return None
    return RunError(
        f"{world.who_is_missing()} ({reason[:120]}); --resume goes on from the newest checkpoint"
    )


class Nobody:
    """Watches a process that has nobody to speak to."""

    def on_stage(self, text: str) -> None:
        """Say nothing."""

    def on_step(self, report: object) -> None:
        """Say nothing."""

    def on_eval(self, row: object) -> None:
        """Say nothing."""

    def on_experts(self, row: object) -> None:
        """Say nothing."""

    def on_checkpoint(self, step: int, path: Path) -> None:
        """Say nothing."""

    def on_message(self, text: str) -> None:
        """Say nothing."""

    def close(self) -> None:
        """Nothing is open."""
