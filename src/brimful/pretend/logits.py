"""Logits in a recording: what a head makes over a vocabulary, and its copies, by their shapes.

A vocabulary is told by a matrix outside the blocks that repeat: more rows than columns, as many as
the head's product has columns, and no layer that reads so many, unless a loss takes their
logarithms or tokens are looked up in it. What is as wide outside these blocks is logits, a copy in
another type, probabilities or their gradients, wherever a program makes them.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from brimful.pretend.modules import pattern_of
from brimful.pretend.recording import Recording
from brimful.values.results import (
    GRADIENTS,
    ITEM_NAMES,
    LOGITS,
    PARAMETERS,
    SAVED_ACTIVATIONS,
    TRANSIENTS,
)

NUM_CHUNKS = 8
"""In so many parts a loss is taken where it is said what that would spare; Liger's takes more."""
_LEAST_WORDS = 2048
"""Rows below which a matrix is no vocabulary's."""
_PRODUCTS = ("aten.mm.", "aten.addmm.", "aten.bmm.", "aten.linear.", "aten._scaled_mm.")
_STAR = "*"


def with_logits(recording: Recording, item: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the classes of allocations, logits in theirs.

    ``item``: the index of each allocation's class, as ``classify`` says it.
    """
    free = [ITEM_NAMES.index(name) for name in (SAVED_ACTIVATIONS, TRANSIENTS)]
    is_logits = _is_as_wide(recording, item) & np.isin(item, free)
    return np.where(is_logits, ITEM_NAMES.index(LOGITS), item)


def _is_as_wide(recording: Recording, item: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each allocation is outside of repeated blocks, and ends in a vocabulary's size."""
    sizes = [sizes_in(shape) for shape, _ in recording.shapes]
    is_outside = np.array([_STAR not in pattern_of(owner) for owner in recording.owners])
    if not len(is_outside) or not sizes:
        return np.zeros(len(recording.num_bytes), dtype=bool)
    outside = is_outside[recording.owner]
    held = np.isin(item, [ITEM_NAMES.index(name) for name in (PARAMETERS, GRADIENTS)])
    is_weight = held & (item == ITEM_NAMES.index(PARAMETERS))  # a gradient may be transposed
    wide = {n for n, m in _matrices(recording, held & outside) if n >= _LEAST_WORDS and n > m}
    read = {columns for _, columns in _matrices(recording, is_weight & outside)}
    words = wide - (read - _words_by_use(recording, sizes))
    is_product = np.array([op.startswith(_PRODUCTS) for op in recording.ops])
    is_forward = np.array([name.endswith(("forward", "eval")) for name in recording.phases])
    made = is_product[recording.op] & is_forward[recording.phase] & outside & ~held
    ends = np.array([each[-1] if each else 0 for each in sizes])
    known = words & set(ends[recording.shape_dtype[made]].tolist())
    return outside & np.isin(ends[recording.shape_dtype], sorted(known))


def _words_by_use(recording: Recording, sizes: Sequence[tuple[int, ...]]) -> set[int]:
    """Return the sizes over which a loss takes logarithms, or whose rows are looked up."""

    def made_by(op: str) -> Iterator[tuple[int, ...]]:
        is_meant = np.array([each.startswith(op) for each in recording.ops])[recording.op]
        return (sizes[i] for i in np.unique(recording.shape_dtype[is_meant]) if sizes[i])

    logarithms = {each[-1] for each in made_by("aten._log_softmax.")}
    return logarithms | {each[0] for each in made_by("aten.embedding_dense_backward.")}


def _matrices(recording: Recording, chosen: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the sizes of the matrices among some allocations, each once."""
    shapes = [sizes_in(recording.shapes[i][0]) for i in np.unique(recording.shape_dtype[chosen])]
    return [(each[0], each[1]) for each in shapes if len(each) == 2]  # noqa: PLR2004


def in_chunks(recording: Recording, item: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the size of each allocation with a loss that is taken part by part.

    ``item``: the index of each allocation's class, logits in theirs.
    """
    is_logits = item == ITEM_NAMES.index(LOGITS)
    parts = np.maximum(1, -(-recording.num_bytes // NUM_CHUNKS))
    return np.where(is_logits, parts, recording.num_bytes)


def sizes_in(shape: str) -> tuple[int, ...]:
    """Read a shape that was written as a list; empty where it is none."""
    words = shape.strip("[]").split(",")
    return tuple(int(word) for word in words if word.strip().isdecimal())
