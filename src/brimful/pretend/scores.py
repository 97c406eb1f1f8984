"""Masks and scores of attention in a recording, by their shape."""

import numpy as np
from numpy.typing import NDArray

from brimful.pretend.reading import live_of, tensor_of
from brimful.pretend.recording import Recording
from brimful.pretend.report_values import Attention
from brimful.values.results import ITEM_NAMES, SAVED_ACTIVATIONS, TRANSIENTS

_RANK_OF_SCORES = 4
_LEAST_POSITIONS = 16
"""Below this a square tensor says nothing."""


def attention_of(recording: Recording, item: NDArray[np.int64]) -> Attention:
    """Find masks and scores by their shape: four dimensions, of which the last two are equal."""
    square, one_head = _square_shapes(recording)
    loose = (SAVED_ACTIVATIONS, TRANSIENTS)
    is_loose = np.isin(item, [ITEM_NAMES.index(name) for name in loose])
    squares = square[recording.shape_dtype] & is_loose
    masks = squares & one_head[recording.shape_dtype]
    rows = np.flatnonzero(squares)
    largest = int(rows[recording.num_bytes[rows].argmax()]) if len(rows) else None
    return Attention(
        simulated_peak_mask_bytes=int(live_of(recording, masks).max()),
        simulated_peak_score_bytes=int(live_of(recording, squares & ~masks).max()),
        largest=None if largest is None else tensor_of(recording, item, largest),
    )


def _square_shapes(recording: Recording) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Tell, per shape, whether its last two dimensions are positions, and whether of a mask."""
    square, mask = [], []
    for shape, dtype in recording.shapes:
        sizes = [int(size) for size in shape.strip("[]()").split(",") if size.strip().isdecimal()]
        is_square = len(sizes) == _RANK_OF_SCORES and sizes[-1] == sizes[-2] >= _LEAST_POSITIONS
        square.append(is_square)
        mask.append(is_square and (sizes[1] == 1 or dtype == "bool"))
    return np.array(square, dtype=bool), np.array(mask, dtype=bool)
