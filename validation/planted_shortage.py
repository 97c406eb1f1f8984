"""Memory that runs out where one wants it to, once: in a phase of a step, or a gather of FSDP2."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from brimful.build import phases
from brimful.train.observers import PlainObserver

PLACE, DONE = "BRIMFUL_PLANTED_PLACE", "BRIMFUL_PLANTED_DONE"
"""Environment of a group: ``forward:2`` and so on; a file that says that it was done."""
PLANTED = "planted on purpose"
GATHER = "all-gather"
_UPDATE = "optimizer"


class Plant:
    """Fails at the beginning of a phase of a step, of an update at its end, when it is made."""

    def __init__(
        self, place: str, step: int, *, is_over: Callable[[], bool] = lambda: False
    ) -> None:
        """Fail once.

        Args:
            place: A phase.
            step: From 1.
            is_over: Whether somebody else has failed already.
        """
        self.is_done = False
        self._place, self._step, self._is_over = place, step, is_over
        self._num_updates = 0

    def listen(self, name: str, begins: bool, _program: Any) -> None:  # noqa: FBT001
        """Hear of a phase."""
        is_there = self._num_updates + 1 == self._step and name == self._place
        is_now = is_there and begins == (name != _UPDATE)
        if is_now and not self.is_done and not self._is_over():
            # The last to hear of it: all others know by then which phase it is.
            phases._listeners.append(self.strike)  # noqa: SLF001
        self._num_updates += name == _UPDATE and not begins

    def strike(self, *_event: object) -> None:
        """Fail."""
        phases._listeners.remove(self.strike)  # noqa: SLF001
        self.is_done = True
        done = os.environ.get(DONE)
        if done:
            Path(done).write_text("done")
        raise torch.OutOfMemoryError(PLANTED)


def _plant_in_gathers(step: int, is_over: Callable[[], bool]) -> None:
    """Fail in an all-gather of FSDP2, of the backward pass of a step."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group

    original, seen = group.foreach_all_gather, {"updates": 0, "phase": ""}

    def listen(name: str, begins: bool, _program: Any) -> None:  # noqa: FBT001
        seen["updates"] += name == _UPDATE and not begins
        seen["phase"] = name if begins else ""

    def gather(*args: Any, **kwargs: Any) -> Any:
        if seen == {"updates": step - 1, "phase": "backward"} and not is_over():
            Path(os.environ[DONE]).write_text("done")
            raise torch.OutOfMemoryError(PLANTED)
        return original(*args, **kwargs)

    group.foreach_all_gather = gather
    phases._listeners.append(listen)  # noqa: SLF001


def planting() -> PlainObserver:
    """Make an observer of the first process, which fails where the environment says."""
    place, step = os.environ[PLACE].split(":")

    def is_over() -> bool:
        return Path(os.environ[DONE]).exists()

    if place == GATHER:
        _plant_in_gathers(int(step), is_over)
    else:
        phases._listeners.append(Plant(place, int(step), is_over=is_over).listen)  # noqa: SLF001
    return PlainObserver()


def quiet() -> PlainObserver:
    """Make an observer that plants nothing."""
    return PlainObserver()
