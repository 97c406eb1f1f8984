"""Graphs that no backward pass goes through: what forward passes keep at the peak for nothing.

An evaluation without ``torch.no_grad()`` keeps what every layer saved for as long as somebody holds
its loss, and a sum of losses holds all of them; so does one view that is rendered between steps.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.pretend.idle_gradients import Pass
from brimful.pretend.recording import NEVER, Recording
from brimful.values.results import ITEM_NAMES, SAVED_ACTIVATIONS

_LEAST_SHARE = 0.3
"""Of the peak, below which it is not told."""
_LEAST_PART = 0.01
"""Of what the largest pass keeps: a loss that is still held is no graph."""
_MOST = 0.5
"""Of what a pass keeps: who frees so much of one lets go of what it goes through."""
_FORWARD, _BACKWARD = "forward", "backward"


class Unused(NamedTuple):
    """What no backward pass goes through.

    Attributes:
        rows: Allocations at the peak that forward passes made for one; none: a small part of it.
        every: Such allocations at any time, where some are at the peak.
        passes: [phases], whether each is a forward pass that is surely of no step of training.
    """

    rows: NDArray[np.int64]
    every: NDArray[np.int64]
    passes: NDArray[np.bool_]


def unused_of(
    recording: Recording,
    item: NDArray[np.int64],
    peak_event: int,
    passes: Mapping[int, Pass],
) -> Unused:
    """Find what forward passes keep though no backward pass goes through it.

    ``passes``: what modules returned, by phase; of other phases nothing is known.
    """
    num = len(recording.phases)
    every = np.flatnonzero(item == ITEM_NAMES.index(SAVED_ACTIVATIONS))
    ended = np.searchsorted(recording.phase_starts, recording.died[every], "right") - 1
    ended[recording.died[every] == NEVER] = num
    made = recording.phase[every]
    returned = np.full(num, len(recording.events))
    for phase in (phase for phase in passes if phase < num):
        returned[phase] = passes[phase].end
    is_within = recording.born[every] < returned[made]  # what comes behind may be the next step's
    ends = _ends_of(recording, every[is_within], ended[is_within])
    graphs = np.array([phase in passes and passes[phase].has_graph for phase in range(num)])
    known = np.isin(np.arange(num), [*passes])
    num_by, held = _between(ends.is_backward, made, ended), ended == num
    # A backward pass that lets go of nothing may have gone through it; what is held at the end may
    # have its backward pass yet.
    goes_back = np.append(ends.is_backward, np.zeros(1, dtype=bool))[ended]
    by_others = (graphs & ends.is_whole)[made] & (num_by > 0) & ~goes_back
    keeps = ends.is_backward & ~ends.lets_go
    keeps[-1:] = False  # in which the program was ended
    by_others &= _between(keeps, made, ended) == 0
    by_others &= ~held | (num_by > ends.most_between)
    is_pass = np.zeros(num, dtype=bool)
    is_pass[made[by_others]] = True
    alive = recording.alive_at(peak_event)
    may_be, here = (ends.is_idle & (graphs | ~known))[made], np.isin(every, alive)
    chosen = may_be & (by_others | (~held & (num_by == 0)))
    # One may be the outputs, which a name still holds, or a pass in which the program was ended.
    for several in (may_be & (num_by > 0) & ~by_others, may_be & held & (num_by == 0)):
        if len(forwards_of(recording, every[several & here])) > 1:
            chosen |= several
    rows, num_bytes = every[chosen & here], recording.num_bytes
    if num_bytes[rows].sum() < _LEAST_SHARE * num_bytes[alive].sum():
        return Unused(rows[:0], rows[:0], is_pass)
    return Unused(rows, every[chosen], is_pass)


class _Ends(NamedTuple):
    """How graphs end.

    Attributes:
        is_backward: [phases], whether each is a backward pass.
        lets_go: [phases], whether each frees most of what some forward pass kept.
        is_idle: [phases], whether each is a forward pass of which backward passes free next to
            nothing.
        is_whole: [phases], whether they free nothing of it.
        most_between: Backward passes at most between a forward pass and one that goes through it.
    """

    is_backward: NDArray[np.bool_]
    lets_go: NDArray[np.bool_]
    is_idle: NDArray[np.bool_]
    is_whole: NDArray[np.bool_]
    most_between: int


def _ends_of(recording: Recording, saved: NDArray[np.int64], ended: NDArray[np.int64]) -> _Ends:
    """Tell which backward pass goes through what.

    Of a pass that is gone through, some later pass frees most, whichever of several that is; what
    a name still holds are its outputs.

    ``ended``: in which phase each of the ``saved`` is freed; behind the last: in none.
    """
    num = len(recording.phases)
    is_backward = _ends_in(recording.phases, _BACKWARD)
    num_bytes = recording.num_bytes[saved].astype(np.float64)
    made = recording.phase[saved]
    kept = np.bincount(made, num_bytes, num)
    goes_back = np.append(is_backward, np.zeros(1, dtype=bool))[ended]
    freed = np.bincount(made[goes_back], num_bytes[goes_back], num)
    pairs, which = np.unique(made[goes_back] * num + ended[goes_back], return_inverse=True)
    sums = np.bincount(which, num_bytes[goes_back], len(pairs))
    begun, back = np.divmod(pairs, num)
    is_most = sums >= _MOST * kept[begun]
    lets_go = np.zeros(num, dtype=bool)
    lets_go[back[is_most]] = True
    between = _between(is_backward, begun[is_most], back[is_most])
    is_forward = _ends_in(recording.phases, _FORWARD)
    is_idle = is_forward & (freed <= _LEAST_PART * kept)
    return _Ends(
        is_backward, lets_go, is_idle, is_forward & (freed == 0), int(between.max(initial=0))
    )


def _between(
    chosen: NDArray[np.bool_], first: "NDArray[np.integer[Any]]", last: "NDArray[np.integer[Any]]"
) -> NDArray[np.int64]:
    """Count the chosen phases behind the first ones and before the last."""
    before = np.concatenate(([0], np.cumsum(chosen)))
    return np.asarray(before[last] - before[np.minimum(first + 1, last)])


def _ends_in(names: Sequence[str], ending: str) -> NDArray[np.bool_]:
    return np.array([name.endswith(ending) for name in names], dtype=bool)


def forwards_of(recording: Recording, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the forward passes that made some allocations, but for those of next to nothing."""
    made = np.bincount(recording.phase[rows], weights=recording.num_bytes[rows])
    return np.flatnonzero(made > _LEAST_PART * made.max(initial=0))
