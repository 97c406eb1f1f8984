"""Memory that runs out where one wants it to, once: in a phase of a step, or a gather of FSDP2."""

from pathlib import Path
from typing import Any

import torch

from brimful.build import phases
from brimful.train.observers import PlainObserver

PLANTED = "planted on purpose"
GATHER = "all-gather"
_UPDATE = "optimizer"


class Plant:
    """Fails at the beginning of a phase of a step, of an update at its end, when it is made."""

    def __init__(self, place: str, step: int, *, done: Path | None = None) -> None:
        """Fail once.

        Args:
            place: A phase.
            step: From 1.
            done: A file that says, to a group that starts again too, that it was done.
        """
        self.is_done = False
        self._place, self._step, self._done = place, step, done
        self._num_updates = 0

    def listen(self, name: str, begins: bool, _program: Any) -> None:  # noqa: FBT001
        """Hear of a phase."""
        is_there = self._num_updates + 1 == self._step and name == self._place
        is_now = is_there and begins == (name != _UPDATE)
        is_over = self.is_done or (self._done is not None and self._done.exists())
        if is_now and not is_over:
            # The last to hear of it: all others know by then which phase it is.
            phases._listeners.append(self.strike)  # noqa: SLF001
        self._num_updates += name == _UPDATE and not begins

    def strike(self, *_event: object) -> None:
        """Fail."""
        phases._listeners.remove(self.strike)  # noqa: SLF001
        self.is_done = True
        if self._done is not None:
            self._done.write_text("done")
        raise torch.OutOfMemoryError(PLANTED)


def _plant_in_gathers(step: int, done: Path) -> None:
    """Fail in an all-gather of FSDP2, of the backward pass of a step."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group

    original, seen = group.foreach_all_gather, {"updates": 0, "phase": ""}

    def listen(name: str, begins: bool, _program: Any) -> None:  # noqa: FBT001
        seen["updates"] += name == _UPDATE and not begins
        seen["phase"] = name if begins else ""

    def gather(*args: Any, **kwargs: Any) -> Any:
        if seen == {"updates": step - 1, "phase": "backward"} and not done.exists():
            done.write_text("done")
            raise torch.OutOfMemoryError(PLANTED)
        return original(*args, **kwargs)

    group.foreach_all_gather = gather
    phases._listeners.append(listen)  # noqa: SLF001


def planting(place: str, step: int, done: Path) -> PlainObserver:
    """Make an observer of the first process, which fails once, in all attempts of a group together.

    Args:
        place: A phase, or ``GATHER``.
        step: From 1.
        done: A file that says that it was done.
    """
    if place == GATHER:
        _plant_in_gathers(step, done)
    else:
        phases._listeners.append(Plant(place, step, done=done).listen)  # noqa: SLF001
    return PlainObserver()


def quiet() -> PlainObserver:
    """Make an observer that plants nothing."""
    return PlainObserver()
