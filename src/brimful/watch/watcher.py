"""Watching the first steps of a loop: the meter, the batches it is given, and how long steps take.

Beside the metered steps nothing is done but reading a clock.
"""

import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from brimful.hardware.cluster import Cluster
from brimful.hardware.gpus import load_cluster
from brimful.hardware.probe import LOCAL
from brimful.measure.loop import NUM_STEPS, LoopMeter, Subject, loop_meter
from brimful.measure.reading import Reading, measurement
from brimful.report.watched import write_watched_report
from brimful.report.watched_run import WatchedRun, write_watched
from brimful.train.memory import peak_bytes
from brimful.values.results import Measurement
from brimful.watch.twin import note


class Watcher:
    """Follows one loop.

    Attributes:
        subject: What is trained.
        batches: What the metered steps were given, without memory of PyTorch's.
        step_s: Seconds of the steps behind the metered ones.
    """

    def __init__(self, subject: Subject) -> None:
        """Begin to meter."""
        self.subject = subject
        self.batches: list[Any] = []
        self.step_s: list[float] = []
        self._reading: Reading | None = None
        self._num_done = 0
        self._since: float | None = None
        self._meter: LoopMeter | None = loop_meter(subject)
        self._meter.start()

    @property
    def is_metering(self) -> bool:
        """Whether the instrument is still on."""
        return self._meter is not None

    @property
    def num_metered(self) -> int:
        """Steps that the instrument saw the end of."""
        return min(self._num_done, NUM_STEPS)

    def take(self, batch: Any) -> None:
        """Remember a batch, while steps are metered."""
        if self._meter is not None:
            self.batches.append(note(batch))

    def begin_step(self) -> None:
        """Read the clock."""
        self._since = time.perf_counter()

    def end_step(self) -> None:
        """Count a step; after the last metered one, read the instrument."""
        self._num_done += 1
        if self._meter is None and self._since is not None:
            self.step_s.append(time.perf_counter() - self._since)
        if self._num_done == NUM_STEPS:
            self.stop()

    def stop(self) -> None:
        """Read the instrument, if it is still on."""
        if self._meter is not None:
            meter, self._meter = self._meter, None
            self._reading = meter.stop()

    def abandon(self) -> None:
        """Take the instrument off and read nothing."""
        if self._meter is not None:
            self._meter.abandon()
            self._meter = None

    def measured(self) -> Measurement | None:
        """Return the third rung; None where no step was seen."""
        self.stop()
        if self._reading is None:
            return None
        return measurement(
            self._reading,
            process_bytes=peak_bytes(device_of(self.subject.model)),
            step_s=median(self.step_s) if self.step_s else None,
        )


def device_of(model: torch.nn.Module) -> torch.device:
    """Return where a model's first parameter is."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def this_machine() -> Cluster:
    """Describe one device of this machine."""
    return load_cluster(LOCAL, memory_limit_bytes=None)


def counts(model: torch.nn.Module) -> tuple[int, int]:
    """Count a model's parameters, and those that are trained."""
    every = list(model.parameters())
    return sum(p.numel() for p in every), sum(p.numel() for p in every if p.requires_grad)


def write_run(run: WatchedRun, folder: Path) -> Path:
    """Write a watched run and its page.

    Returns:
        The page.

    Raises:
        RunError: The folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_watched(run, folder)
    return write_watched_report(run, folder)
