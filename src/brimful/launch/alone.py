"""A run in this process alone, started again by the next strategy where memory runs out."""

import gc
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import torch

from brimful.cost.estimate import limit_bytes
from brimful.measure.limit import limited
from brimful.measure.meter import meter_for
from brimful.measure.reading import Reading
from brimful.train.loop import train
from brimful.train.observers import Observer
from brimful.train.result import TrainResult
from brimful.train.settings import RunSettings
from brimful.train.takeover import NextPlan, Shortage, ShortageError, Ways, start_again
from brimful.values.plan import Plan
from brimful.values.run_words import describe_takeover


class Alone(NamedTuple):
    """How a run ended, and what was measured of it; None where nothing was."""

    result: TrainResult
    reading: Reading | None


def run_alone(
    plan: Plan,
    settings: RunSettings,
    *,
    observer: Callable[[], Observer],
    next_plan: NextPlan | None,
) -> Alone:
    """Train in this process to the end.

    ``plan``: what is run at first. ``settings``: how it is kept; says whether the plan's limit is
    enforced. ``next_plan``: says what is tried when memory runs out; None: nothing. Raises
    RunError: memory ran out and nothing is left to try.
    """
    while True:
        watching = observer()
        tried = _tried(plan, settings, watching, Ways(next_plan))
        if isinstance(tried, Alone):
            return tried
        _clean_up()  # the error is gone by now, and with it what held the program
        plan, row = start_again(plan, tried, settings.out, Ways(next_plan))
        watching.on_message(describe_takeover(row))
        settings = msgspec.structs.replace(settings, resume=True)


def _tried(plan: Plan, settings: RunSettings, observer: Observer, ways: Ways) -> Alone | Shortage:
    """Run a plan to its end, or to where memory ran out."""
    kernels = plan.cluster.device.kernels
    meter = meter_for(kernels)
    limit = limit_bytes(plan) if settings.enforces_limit else None
    try:
        with limited(kernels, limit):
            result = train(plan, settings, observer=observer, meter=meter, ways=ways)
    except ShortageError as error:
        return error.shortage
    return Alone(result, meter.reading)


def _clean_up() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
