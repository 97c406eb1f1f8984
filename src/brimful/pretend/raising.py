"""What would raise the largest batch that fits: changes of a program, each alone, by proportion."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.pretend.combined import sizes_with
from brimful.pretend.logits import NUM_CHUNKS, in_chunks, sizes_in, with_logits
from brimful.pretend.proportion import Batch, Room, most_of
from brimful.pretend.reading import classify
from brimful.pretend.recording import Recording
from brimful.values.results import ITEM_NAMES, LOGITS, SAVED_ACTIVATIONS, TRANSIENTS

ATTENTION = "F.scaled_dot_product_attention"
CHUNKED = f"the loss in {NUM_CHUNKS} chunks"
_SOFTMAX = "aten._softmax."
_LEAST_RANK = 3
"""Sizes of attention's scores: of samples and heads, maybe as one, and two of positions."""
_WORTH_IT = 1.25
"""Times the batch that fits as it is."""
_LEAST_NAMED = 0.08
"""Of the peak, which attention's scores or logits take that are named though they raise less."""
_TIMES = 8
"""The batch that fits, up to which a larger one is told: what else it would ask for is not known.
"""


class Raised(NamedTuple):
    """A change that would raise a batch.

    Attributes:
        change: What is changed.
        num: The largest batch that surely fits then.
        num_bytes: What is not there any more, of the peak as it is; 0: that is not told.
    """

    change: str
    num: int
    num_bytes: int = 0


def raised(
    recording: Recording, batch: Batch, room: Room, *, is_checkpointed: bool
) -> tuple[Raised, ...]:
    """Return the changes that would raise a batch, that first which does most.

    ``recording``: of a program that fits, or nearly. ``is_checkpointed``: whether it runs blocks
    again already.
    """
    item = with_logits(recording, classify(recording))
    scores = _scores(recording, item)
    alive = recording.alive_at(int(recording.live_bytes().argmax()))
    held = {
        ATTENTION: int(recording.num_bytes[alive[scores[alive]]].sum()),
        CHUNKED: int(recording.num_bytes[alive[item[alive] == ITEM_NAMES.index(LOGITS)]].sum()),
    }
    sizes = sizes_with(recording, is_checkpointed=is_checkpointed)
    sizes[ATTENTION] = np.where(scores, 1, recording.num_bytes)
    sizes[CHUNKED] = in_chunks(recording, item)
    now = max(most_of(recording, batch, room, times=_TIMES), 1)
    much = _LEAST_NAMED * recording.live_bytes().max()
    found = []
    for change, new in sizes.items():
        num = most_of(replace(recording, num_bytes=new), batch, room, times=_TIMES)
        num_bytes = held.get(change, 0)
        if num >= _WORTH_IT * now or (num > now and num_bytes >= much):
            found.append(Raised(change, num, num_bytes))
    return tuple(sorted(found, key=lambda each: -each.num))


def _scores(recording: Recording, item: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each allocation has the shape of attention's weights that are written out."""
    loose = np.isin(item, [ITEM_NAMES.index(name) for name in (SAVED_ACTIVATIONS, TRANSIENTS)])
    is_softmax = np.array([op.startswith(_SOFTMAX) for op in recording.ops])[recording.op]
    sizes = [sizes_in(shape) for shape, _ in recording.shapes]
    made = {sizes[i] for i in np.unique(recording.shape_dtype[is_softmax & loose]).tolist()}
    made = {each for each in made if len(each) >= _LEAST_RANK}
    return np.asarray(np.array([each in made for each in sizes])[recording.shape_dtype] & loose)
