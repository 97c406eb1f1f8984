"""What a program does to its memory already: checkpoints, a batch of one, gradients kept whole."""

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from brimful.pretend.logits import sizes_in, with_logits
from brimful.pretend.model_values import Already
from brimful.pretend.modules import pattern_of
from brimful.pretend.reading import classify
from brimful.pretend.recording import Recording
from brimful.pretend.unit_values import WholeGradients
from brimful.values.results import ITEM_NAMES, SAVED_ACTIVATIONS, WHOLE_GRADIENTS

_LEAST_OF_ONE = 0.5
"""Share of what forward passes save whose first size is one, where the batch is of one."""
_LEAST_RANK = 3
"""Sizes of a tensor that has one for its batch, one for places in it and one for their width."""


def already_done(
    recording: Recording,
    peak_event: int,
    run_again: Collection[str],
    checkpointing: Mapping[str, bool],
) -> Already:
    """Read off a recording what need not be advised.

    ``run_again``: paths of modules that backward passes called. ``checkpointing``: by class of each
    model that has it turned on whether what has it is in training mode.
    """
    has_backward = any(name.endswith("backward") for name in recording.phases)
    idle = {} if run_again or not has_backward else checkpointing
    in_vain = next(iter(idle), "")
    saved = with_logits(recording, classify(recording)) == ITEM_NAMES.index(SAVED_ACTIVATIONS)
    again = {pattern_of(path) for path in run_again} | ({""} if run_again else set())
    is_again = np.array([pattern_of(owner) in again for owner in recording.owners], dtype=bool)
    alive = recording.alive_at(peak_event)
    held = alive[saved[alive] & is_again[recording.owner[alive]]]
    return Already(
        checkpointed_bytes=int(recording.num_bytes[held].sum()),
        is_of_one=_is_of_one(recording, saved),
        in_vain=in_vain,
        is_eval=bool(in_vain) and not idle[in_vain],
    )


def _is_of_one(recording: Recording, saved: NDArray[np.bool_]) -> bool:
    sizes = [sizes_in(shape) for shape, _ in recording.shapes]
    has_batch = np.array([len(each) >= _LEAST_RANK for each in sizes], dtype=bool)
    is_one = np.array([bool(each) and each[0] == 1 for each in sizes], dtype=bool)
    rows = np.flatnonzero(saved & has_batch[recording.shape_dtype])
    num_bytes = recording.num_bytes[rows]
    ones = num_bytes[is_one[recording.shape_dtype[rows]]]
    return bool(num_bytes.sum() and ones.sum() >= _LEAST_OF_ONE * num_bytes.sum())


def whole_gradients(recording: Recording, peak_event: int) -> WholeGradients | None:
    """Add up the gradients at the peak that are whole until they are reduced."""
    if WHOLE_GRADIENTS not in recording.items:
        return None
    alive = recording.alive_at(peak_event)
    rows = alive[recording.item[alive] == recording.items.index(WHOLE_GRADIENTS)]
    steps = [name.split()[1] for name in recording.phases if name.endswith("backward")]
    return WholeGradients(
        num_bytes=int(recording.num_bytes[rows].sum()),
        num_backwards=max(steps.count(step) for step in steps),
    )
