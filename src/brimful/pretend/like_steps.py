"""Tells when the steps of a script are alike, or leave the same bytes behind each time.

Then nothing is learnt by running on: a step's memory is known, and what grows by as much every time
runs out in a step that is told by proportion.
"""

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import torch

from brimful.pretend.data_over import DataOver
from brimful.pretend.script_lines import is_library
from brimful.pretend.step_values import ENOUGH_STEPS
from brimful.units import MIB

if TYPE_CHECKING:
    from brimful.pretend.session import Run

ENOUGH_ALIKE = 3
"""Steps in a row that asked for the same; one more than where they are slow (``FEWEST_ALIKE``)."""
FEWEST_ALIKE = 2
ENOUGH_GROWN = 5
"""Steps in a row that left the same behind, of which something is told (``report.py``)."""
LEAST_GROWTH = MIB
"""Of a step, in bytes; a list of losses is no growth to speak of."""
_MOST_LOOKED_AT = 10**4
"""Elements of a list of a script's."""

_Shape = tuple[int, int, int, int]
"""The sizes of all that was asked for, how much was freed, the peak and what was left behind."""


class LikeSteps:
    """Follows the whole steps of every optimizer.

    Attributes:
        num_alike: How many in a row, up to the last, asked for the same.
        grown_bytes: What each of these left behind.
        known_event: Of the recording, by which a step's memory is known; None: not yet.
        data: What gives the script its data.
    """

    def __init__(self, run: "Run") -> None:
        """Have seen no step."""
        self.num_alike = self.grown_bytes = 0
        self.data = DataOver(run)
        self.known_event: int | None = None
        self._run = run
        self._num_steps = self._start = 0
        self._last: _Shape | None = None

    def look(self) -> None:
        """Compare a step with the one before it, where one is over."""
        num_steps = self._run.num_steps
        if num_steps == self._num_steps:
            return
        is_next, self._num_steps = num_steps == self._num_steps + 1, num_steps
        builder = self._run.tape.main
        start, self._start = self._start, builder.spot().event
        if num_steps == ENOUGH_STEPS:
            self.known_event = self._start
        if not is_next or num_steps < ENOUGH_STEPS:  # the first makes states
            self.num_alike, self._last = 0, None
            self.data.end_step(is_alike=False)
            return
        rows = builder.events_since(start)
        sizes = [builder.bytes_of(row) if row >= 0 else -builder.bytes_of(~row) for row in rows]
        live = list(accumulate(sizes, initial=0))
        asked = tuple(size for size in sizes if size >= 0)
        shape = (hash(asked), len(sizes) - len(asked), max(live), live[-1])
        self.num_alike = self.num_alike + 1 if shape == self._last else 1
        self._last, self.grown_bytes = shape, live[-1]
        self.data.end_step(is_alike=self.num_alike > 1)

    def are_alike(self, enough: int = ENOUGH_ALIKE) -> bool:
        """Whether so many steps in a row say what any further one takes."""
        return self.num_alike >= enough and abs(self.grown_bytes) < LEAST_GROWTH

    @property
    def do_grow(self) -> bool:
        """Whether it is known what every further step leaves behind."""
        return self.num_alike >= ENOUGH_GROWN and self.grown_bytes >= LEAST_GROWTH


def holder() -> str:
    """Name what of the script that is running holds most of the GPU in a list; empty: nothing."""
    found: dict[str, int] = {}
    frame: Any = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            for name, value in _variables(frame.f_locals):
                found.setdefault(name, _held_bytes(value))
        frame = frame.f_back
    most = max(found, key=lambda name: found[name], default="")
    return most if most and found[most] else ""


def _variables(names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what a function can name: its variables, and what its own object has."""
    yield from list(names.items())
    own = getattr(names.get("self"), "__dict__", {})
    yield from ((f"self.{name}", value) for name, value in list(own.items()))


def _held_bytes(value: Any) -> int:
    """Add up the tensors that a list has of the GPU; 0 of what is none."""
    if type(value) not in {list, tuple, set, dict, deque}:  # others may do anything when asked
        return 0
    if not 0 < len(value) <= _MOST_LOOKED_AT:
        return 0
    parts = value.values() if isinstance(value, Mapping) else value
    return sum(map(_size_of, chain.from_iterable(map(_tensors_in, list(parts)))))


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield an element, or what it has if it is a list, a dictionary or an output of a model."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping | tuple | list):
        parts = value.values() if isinstance(value, Mapping) else value
        yield from (each for each in parts if isinstance(each, torch.Tensor))


def _size_of(tensor: torch.Tensor) -> int:
    is_kept = tensor.device.type != "cpu" and not isinstance(tensor, torch.nn.Parameter)
    return tensor.nbytes if is_kept else 0
