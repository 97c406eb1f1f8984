"""Memory that runs out where a test wants it to, once."""

import os
from pathlib import Path

import torch

from brimful.build import phases
from brimful.train.observers import PlainObserver

PLACE, DONE = "BRIMFUL_TEST_PLACE", "BRIMFUL_TEST_DONE"
PLANTED = "planted by a test"


class Plant:
    """Fails at the beginning of a phase of a step, or at the end of its update, once."""

    def __init__(self, place, step):
        self.place, self.step = place, step
        self.is_done = False
        self._num_updates = 0

    def listen(self, name, begins, _program):
        is_there = self._num_updates + 1 == self.step and name == self.place
        if is_there and begins == (name != "optimizer") and not self.is_done:
            phases._listeners.append(self.strike)  # the last: others have heard of the phase
        self._num_updates += name == "optimizer" and not begins

    def strike(self, *_event):
        phases._listeners.remove(self.strike)
        self.is_done = True
        raise torch.OutOfMemoryError(PLANTED)


class PlantedOnce(Plant):
    """One that only the first group of processes meets."""

    def listen(self, name, begins, program):
        if not Path(os.environ[DONE]).exists():
            super().listen(name, begins, program)

    def strike(self, *event):
        Path(os.environ[DONE]).write_text("done")
        super().strike(*event)


def _gather(plant):
    """Fail in the all-gather of FSDP2 instead, of the step that is meant."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group

    original = group.foreach_all_gather

    def gather(*args, **kwargs):
        if plant.is_due() and not Path(os.environ[DONE]).exists():
            Path(os.environ[DONE]).write_text("done")
            raise torch.OutOfMemoryError(PLANTED)
        return original(*args, **kwargs)

    group.foreach_all_gather = gather


class _Steps:
    """Counts updates, to say which step it is."""

    def __init__(self, step):
        self._step, self._num_updates = step, 0

    def listen(self, name, begins, _program):
        self._num_updates += name == "optimizer" and not begins

    def is_due(self):
        return self._num_updates + 1 == self._step


def planting():
    """Make an observer of the first process, which fails."""
    place, step = os.environ[PLACE].split(":")
    if place == "all-gather":
        steps = _Steps(int(step))
        _gather(steps)
        phases._listeners.append(steps.listen)
    else:
        phases._listeners.append(PlantedOnce(place, int(step)).listen)
    return PlainObserver()
