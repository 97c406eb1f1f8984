"""One process of a run on many devices: joins the others, trains, and says how it ended."""

import atexit
import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch.distributed as dist

from brimful.errors import BrimfulError, RunError
from brimful.files import disk_error, write_bytes
from brimful.measure.meter import meter_for
from brimful.measure.reading import Reading
from brimful.plan import Plan
from brimful.run_files import LAUNCH_FILE, PLAN_FILE
from brimful.train import world
from brimful.train.loop import train
from brimful.train.observers import Observer
from brimful.train.refit import refitted
from brimful.train.result import TrainResult
from brimful.train.settings import RunSettings

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


def work(
    plan: Plan,
    settings: RunSettings,
    *,
    observer: Callable[[], Observer],
    timeout_s: float = world.TIMEOUT_S,
) -> End:
    """Be one process of a run.

    An error that all processes share is an answer: the group is not started again. One that this
    process has alone is raised, and whoever started the group starts it again, or gives up.

    Args:
        plan: What is run; laid out anew where there are more or fewer processes than it is for.
        settings: How it is kept.
        observer: Makes who watches in the first process; nobody does in the others.
        timeout_s: How long to wait for the others.

    Raises:
        BrimfulError: This process failed alone; why is in the run's folder too.
    """
    place = world.place_here()
    if place is None:
        raise RunError("this process was not started in a group; start it with torchrun")
    with world.joined(place, plan.cluster.device.kernels, timeout_s=timeout_s):
        meter = meter_for(plan.cluster.device.kernels)
        try:
            with world.together():
                plan = refitted(plan, place.size)
            watching = observer() if world.is_first() else Nobody()
            result = train(plan, going_on(settings, place), observer=watching, meter=meter)
            readings = tuple(world.of_all(meter.reading))
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


def checked(end: End) -> TrainResult:
    """Return the result of a run that came to its end.

    Raises:
        BrimfulError: Why all of its processes stopped.
    """
    if end.failure is not None:
        raise world.made_again(end.failure.kind, end.failure.text)
    assert end.result is not None  # one of the two is there
    return end.result


def _leave() -> None:
    """End the process without taking the interpreter apart.

    Threads of gloo now and then abort a process whose work is done (``terminate called without an
    active exception``), which whoever started it would take for a loss.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def going_on(settings: RunSettings, place: world.Place) -> RunSettings:
    """Return settings that go on where the group was started again: from its newest checkpoint.

    The group is another one when a machine leaves or comes, and no agent counts that as a restart;
    so the folder keeps the name of the launch that runs there.

    Raises:
        BrimfulError: The folder cannot be read, in all processes.
    """
    lost_one = world.any_says(place.restart > 0)
    begun = False
    with world.together():
        if world.is_first():
            again = lost_one or _is_of_launch(settings.out / LAUNCH_FILE, place.launch)
            begun = again and (settings.out / PLAN_FILE).exists()
    return msgspec.structs.replace(settings, resume=settings.resume or world.told_by_first(begun))


def _is_of_launch(path: Path, launch: str) -> bool:
    try:
        return bool(launch) and path.is_file() and path.read_text() == launch
    except OSError as error:
        raise disk_error(path, error) from error


def _tell(out: Path, rank: int, failure: Failure) -> None:
    folder = out / FAILURES
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / f"{rank}.json", msgspec.json.encode(failure))


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
