"""Models that no optimizer updates: a frozen teacher, a reference, an average of the parameters.

Of modules that are called it is read off the parameters that optimizers have. A copy that is held
beside them (a module that is not called, a dictionary of tensors) has the sizes of what is trained.
"""

import copy
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from brimful.pretend.logits import sizes_in
from brimful.pretend.model_values import NotUpdated
from brimful.pretend.recording import UNTAGGED, Recording
from brimful.values.results import GRADIENTS, NOT_UPDATED

_LEAST_ALIKE = 0.9
"""Share of what is trained that a copy of it has."""


RowsOf = Callable[[Iterable[torch.Tensor]], tuple[int, ...]]
"""Says where tensors lie on the first device."""


class Part(NamedTuple):
    """A module, and the parameters that are in it.

    Attributes:
        path: From the outermost module on; empty: it is that.
        model: Its class.
        parameters: Their ``id``.
        rows: Where they lie on the first device.
        name: Of the script's variable that the outermost module is in; empty: in none.
    """

    path: str
    model: str
    parameters: frozenset[int]
    rows: tuple[int, ...]
    name: str = ""


def parts_of(module: torch.nn.Module, rows_of: RowsOf, name: str = "") -> Iterator[Part]:
    """Yield an outermost module and the models in it, each before what is in it.

    A model has a list of blocks; what is in these is a part of it and no model.

    ``rows_of``: says where tensors lie. ``name``: of the variable that the module is in.
    """
    models = {""}
    for path, _ in module.named_modules():
        names = path.split(".")
        number = next((i for i, name in enumerate(names) if name.isdecimal()), 0)
        models |= {".".join(names[:i]) for i in range(1, number)}  # above the list itself
    for path, child in module.named_modules():
        if path in models:
            parameters = tuple(child.parameters())
            numbers = frozenset(map(id, parameters))
            yield Part(path, type(child).__name__, numbers, rows_of(parameters), name)


def not_updated(
    recording: Recording, peak_event: int, parts: Sequence[Part], updated: Collection[int]
) -> tuple[NotUpdated, ...]:
    """Return what is alive at the peak of models that no optimizer has, the largest first.

    ``recording``: of a program; copies of what is trained are tagged: see ``with_copies``.
    ``updated``: the parameters that optimizers have, by ``id``.
    """
    alive = recording.alive_at(peak_event)
    told = []
    if any(part.parameters & {*updated} for part in parts):  # else an engine updates copies
        told = [
            (part.model, np.intersect1d(alive, part.rows)) for part in _outermost(parts, updated)
        ]
    if NOT_UPDATED in recording.items:
        kind = recording.items.index(NOT_UPDATED)
        told.append(("", alive[recording.item[alive] == kind]))
    found = [_told(recording, model, rows) for model, rows in told if len(rows)]
    return tuple(sorted(found, key=lambda each: -each.num_bytes))


def _outermost(parts: Sequence[Part], updated: Collection[int]) -> Iterator[Part]:
    """Yield the parts of which nothing is updated, and not what is in one of these."""
    seen: set[int] = set()
    for part in parts:
        if part.parameters and not part.parameters & {*updated} and not part.parameters & seen:
            seen |= part.parameters
            yield part


def _told(recording: Recording, model: str, rows: NDArray[np.int64]) -> NotUpdated:
    line = recording.lines[recording.line[rows[recording.num_bytes[rows].argmax()]]]
    is_library = line.rpartition(":")[0] == copy.__file__  # deepcopy makes it there
    num_bytes = int(recording.num_bytes[rows].sum())
    return NotUpdated(model=model, num_bytes=num_bytes, line="" if is_library else line)


def with_copies(recording: Recording, known: Collection[int]) -> Recording:
    """Return a recording in which copies of what is trained are a class of their own.

    Such a copy was made in no pass over a batch and lies there through a whole step; its sizes are
    those of the gradients.

    ``known``: allocations of what optimizers have, which are no copies.
    """
    updates = np.flatnonzero([name.endswith("optimizer") for name in recording.phases])
    forwards = np.flatnonzero([name.endswith("forward") for name in recording.phases])
    if GRADIENTS not in recording.items or not len(updates) or not len(forwards):
        return recording
    dims = [tuple(sorted(n for n in sizes_in(shape) if n > 1)) for shape, _ in recording.shapes]
    # Count the gradients of each size that there are before an event.
    rows = recording.alive_at(int(recording.phase_starts[updates[-1]]))
    rows = rows[recording.item[rows] == recording.items.index(GRADIENTS)]
    trained = Counter(dims[i] for i in recording.shape_dtype[rows].tolist() if dims[i])
    before = forwards[forwards < updates[-1]][-1:]
    held = recording.alive_at(int(recording.phase_starts[updates[-1]]))
    is_pass = np.array([name.endswith(("forward", "backward")) for name in recording.phases])
    is_loose = np.array([name == UNTAGGED for name in recording.items])
    held = held[is_loose[recording.item[held]] & ~is_pass[recording.phase[held]]]
    held = held[
        recording.born[held] < recording.phase_starts[before].min(initial=len(recording.events))
    ]
    of_size = np.array([each in trained for each in dims], dtype=bool)
    held = np.setdiff1d(held[of_size[recording.shape_dtype[held]]], [*known])
    count = Counter(dims[i] for i in recording.shape_dtype[held].tolist())
    alike = sum(min(num, count[each]) * prod(each) for each, num in trained.items())
    if alike < _LEAST_ALIKE * sum(num * prod(each) for each, num in trained.items()):
        return recording
    item = recording.item.copy()
    item[held] = len(recording.items)
    return replace(recording, item=item, items=(*recording.items, NOT_UPDATED))
