"""What changes together would make a training fit that does not: computed of what one run recorded.

Parameters are updated by a fused kernel, blocks that repeat keep what they are given and are run
again in the backward pass, and moments are taken in 8 bits; then the batch is made smaller, as far
as it must be. Sizes alone change: each combination is a replay. Of changes that do alike the first
is told that leaves alone what is learnt.
"""

from collections import defaultdict
from dataclasses import replace
from itertools import chain, combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.allocator.held import held_of
from brimful.pretend.logits import sizes_in, with_logits
from brimful.pretend.modules import STAR, pattern_of, whole_of
from brimful.pretend.proportion import Batch, Room, most_of
from brimful.pretend.reading import classify
from brimful.pretend.recording import Recording
from brimful.values.results import ITEM_NAMES, OPTIMIZER_STATE, SAVED_ACTIVATIONS, TRANSIENTS

FUSED, CHECKPOINTED = "fused=True of torch.optim", "checkpointed blocks"
ROUNDED = "8-bit moments"
_WITHIN = {FUSED, ROUNDED}
"""Of which the second makes what the first spares, too."""
_LEAST_BLOCKS = 3
"""That repeat, of a model whose blocks are worth running again."""
_LEAST_RANK = 2
_WORTH_IT = 1.5
"""Times the batch that fits as it is, for which a program is changed."""
_ROUNDED = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of moments, of which one is left."""
_UPDATE, _LISTS = "optimizer", "_foreach_"
"""The end of the name of a phase of updates, and what operations on lists are called."""
_SCALES = 64
"""Bytes of moments in 8 bits for one of their scales: four for 256."""


class Combination(NamedTuple):
    """What would fit.

    Attributes:
        changes: What is changed beside the batch.
        num: How large the batch is then.
        reserved_bytes: What the allocator would hold.
    """

    changes: tuple[str, ...]
    num: int
    reserved_bytes: int


def combined(
    recording: Recording, batch: Batch, room: Room, *, is_checkpointed: bool
) -> Combination | None:
    """Return the fewest changes with which a program keeps its batch, else all and a smaller one.

    ``recording``: of a program that does not fit. ``is_checkpointed``: whether it runs blocks again
    already. Returns None where not even a batch of one fits, or little more than without any change
    but that.
    """
    sizes = sizes_with(recording, is_checkpointed=is_checkpointed)
    names = list(sizes)
    found = None
    every = (combinations(names, num) for num in range(1, len(names) + 1))
    for changes in chain.from_iterable(every):
        if set(changes) >= _WITHIN:
            continue
        parts = [sizes[name] for name in changes]
        smaller = replace(recording, num_bytes=np.minimum.reduce(parts))
        num = most_of(smaller, batch, room)
        if num and (found is None or num > found[0]):
            found = num, changes, smaller
        if num == batch.given:
            break
    if found is None:
        return None
    num, changes, smaller = found
    if num < batch.given and num < _WORTH_IT * most_of(recording, batch, room):
        return None
    requests = batch.scaled(smaller, num).requests()
    held = held_of(requests, settings=room.settings, capacity_bytes=None)
    return Combination(changes, num, held.peak_reserved_bytes)


def sizes_with(recording: Recording, *, is_checkpointed: bool) -> dict[str, NDArray[np.int64]]:
    """Return the size of each allocation with each change that makes some of them smaller.

    ``is_checkpointed``: whether blocks are run again already.
    """
    item = with_logits(recording, classify(recording))
    passing = _listed(recording, item)
    sizes = {FUSED: np.where(passing, 1, recording.num_bytes)}
    if not is_checkpointed:
        sizes[CHECKPOINTED] = _checkpointed(recording, item)
    sizes[ROUNDED] = _rounded(recording, item, passing)
    return {name: new for name, new in sizes.items() if (new < recording.num_bytes).any()}


def _listed(recording: Recording, item: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each allocation is a result of an update of a list of tensors (``foreach``).

    A fused kernel has none, nor has an optimizer that goes through one parameter after another.
    """
    is_update = np.array([name.endswith(_UPDATE) for name in recording.phases])[recording.phase]
    is_listed = np.array([_LISTS in op for op in recording.ops])[recording.op]
    return np.asarray(is_update & is_listed & (item == ITEM_NAMES.index(TRANSIENTS)))


def _rounded(
    recording: Recording, item: NDArray[np.int64], passing: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the size of each allocation with moments in 8 bits.

    An optimizer that keeps them goes through one parameter after another, without what is
    ``passing``.
    """
    widths = np.array([_ROUNDED.get(dtype, 1) for _, dtype in recording.shapes])
    width = widths[recording.shape_dtype]
    is_moment = (item == ITEM_NAMES.index(OPTIMIZER_STATE)) & (width > 1)
    narrow = recording.num_bytes // width
    sizes = np.where(is_moment, np.maximum(narrow + narrow // _SCALES, 1), recording.num_bytes)
    return np.where(passing, 1, sizes) if is_moment.any() else sizes


def _checkpointed(recording: Recording, item: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the size of each allocation where blocks that repeat are run again.

    Of all blocks but the first what comes in is kept. The first, which is there until a backward
    pass ends, stands for that which is run again at the time.
    """
    sizes = recording.num_bytes.copy()
    is_saved = item == ITEM_NAMES.index(SAVED_ACTIVATIONS)
    rank = np.array([len(sizes_in(shape)) for shape, _ in recording.shapes])
    blocks = [_block_of(path) for path in recording.owners]
    for whole in {whole for whole, _ in blocks if whole}:
        numbers = {number for name, number in blocks if name == whole}
        if len(numbers) < _LEAST_BLOCKS:
            continue
        first = min(numbers)
        is_meant = np.array([name == whole and number > first for name, number in blocks])
        rows = np.flatnonzero(is_saved & is_meant[recording.owner])
        wide = rows[rank[recording.shape_dtype[rows]] >= _LEAST_RANK]
        if not len(wide):
            continue
        paths = (recording.owners[owner] for owner in recording.owner[wide].tolist())
        own = wide[np.array([whole_of(path) == pattern_of(path) for path in paths])]
        incoming = _most_frequent(recording.num_bytes[own if len(own) else wide])
        sizes[rows] = 1
        parts: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row in rows.tolist():
            parts[int(recording.phase[row]), blocks[recording.owner[row]][1]].append(row)
        for its in parts.values():
            alike = [row for row in its if recording.num_bytes[row] == incoming]
            sizes[(alike or its)[0]] = incoming
    return sizes


def _block_of(path: str) -> tuple[str, int]:
    """Return which row of blocks a module is in, and in which block of it; no name: in none."""
    whole = whole_of(path)
    if not whole.endswith(STAR):
        return "", 0
    before = whole.count(".")
    return whole, int(path.split(".")[before])


def _most_frequent(sizes: NDArray[np.int64]) -> int:
    """Return the size that most allocations have, the smallest of several: a block's own width."""
    values, counts = np.unique(sizes, return_counts=True)
    return int(values[counts.argmax()])
