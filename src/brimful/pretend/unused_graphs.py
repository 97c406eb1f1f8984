"""Graphs that no backward pass goes through: what forward passes keep at the peak for nothing.

An evaluation without ``torch.no_grad()`` keeps what every layer saved for as long as somebody holds
its loss, and a sum of losses holds all of them.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from brimful.pretend.recording import NEVER, Recording
from brimful.values.results import ITEM_NAMES, SAVED_ACTIVATIONS

_LEAST_SHARE = 0.3
"""Of the peak, below which it is not told."""
_LEAST_PART = 0.01
"""Of what the largest pass keeps: a loss that is still held is no graph."""
_FORWARD, _BACKWARD = "forward", "backward"


def unused_rows(
    recording: Recording, item: NDArray[np.int64], peak_event: int
) -> NDArray[np.int64]:
    """Return the allocations at the peak that a forward pass kept and no backward pass used.

    Returns None of them where they are a small part of the peak.
    """
    alive = recording.alive_at(peak_event)
    phases, end = recording.phases, len(recording.events)
    every = np.flatnonzero(item == ITEM_NAMES.index(SAVED_ACTIVATIONS))
    idle = _idle_forwards(recording, every)
    saved = np.intersect1d(alive, every[idle[recording.phase[every]]])
    died = np.where(recording.died[saved] == NEVER, end, recording.died[saved])
    backwards = np.flatnonzero(_ends_in(phases, _BACKWARD))
    following = np.searchsorted(backwards, recording.phase[saved], "right")
    starts = np.append(recording.phase_starts[backwards], end)[following]
    ends = np.append(np.append(recording.phase_starts, end)[backwards + 1], end)[following]
    unused, outlive = saved[died <= starts], saved[died > ends]
    if num_forwards(recording, outlive) > 1:  # one may be the outputs, which a name still holds
        unused = np.append(unused, outlive)
    num_bytes = recording.num_bytes
    is_much = num_bytes[unused].sum() >= _LEAST_SHARE * num_bytes[alive].sum()
    return np.asarray(unused if is_much else unused[:0])


def _idle_forwards(recording: Recording, saved: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each phase is a forward pass of whose graph next to nothing ends in a backward pass.

    Of a pass that is gone through, some later pass frees most, whichever of several that is; what
    a name still holds are its outputs.
    """
    is_backward = _ends_in(recording.phases, _BACKWARD)
    ended = np.searchsorted(recording.phase_starts, recording.died[saved], "right") - 1
    goes_back = is_backward[ended] & (recording.died[saved] != NEVER)
    num_bytes, num_phases = recording.num_bytes, len(recording.phases)

    def in_phases(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        made = np.bincount(recording.phase[rows], num_bytes[rows], num_phases)
        return made.astype(np.float64)

    is_idle = in_phases(saved[goes_back]) <= _LEAST_PART * in_phases(saved)
    return np.asarray(_ends_in(recording.phases, _FORWARD) & is_idle)


def _ends_in(names: Sequence[str], ending: str) -> NDArray[np.bool_]:
    return np.array([name.endswith(ending) for name in names], dtype=bool)


def num_forwards(recording: Recording, rows: NDArray[np.int64]) -> int:
    """Count the forward passes that made some allocations, but for those of next to nothing."""
    made = np.bincount(recording.phase[rows], weights=recording.num_bytes[rows])
    return int((made > _LEAST_PART * made.max(initial=0)).sum())
