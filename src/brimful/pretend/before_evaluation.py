"""What a training takes up to the evaluation that fails: the answer to which of the two it is."""

import numpy as np
from numpy.typing import NDArray

from brimful.allocator.config import AllocatorSettings
from brimful.allocator.held import held_of
from brimful.pretend.recording import Recording
from brimful.pretend.report_values import Failure
from brimful.pretend.step_values import ENOUGH_STEPS
from brimful.pretend.until import until

_UPDATE, _BACKWARD, _FORWARD, _EVALUATION = "optimizer", "backward", "forward", "eval"
_LEAST_FORWARDS = 2
"""One behind another, without a backward pass, which tell an evaluation that builds graphs."""


def phase_of(recording: Recording, event: int) -> int:
    """Return the number of the phase in which an event is."""
    return int(np.searchsorted(recording.phase_starts, event, "right")) - 1


def before_evaluation(
    recording: Recording,
    failure: Failure | None,
    settings: AllocatorSettings,
    capacity_bytes: int,
    between: NDArray[np.bool_],
) -> int | None:
    """Return what the allocator holds at most before the evaluation in which a program fails.

    ``capacity_bytes``: what it can hold; ``between``: [phases], those that surely are one though
    they build graphs. Returns None where it fails elsewhere or nowhere, or before two steps were
    whole.
    """
    if failure is None:
        return None
    names = recording.phases
    failing = phase_of(recording, failure.event)
    updates = [i for i, name in enumerate(names[:failing]) if name.endswith(_UPDATE)]
    if len(updates) < ENOUGH_STEPS:
        return None
    begun = updates[-1] + 1
    goes_back = (i for i in range(begun, len(names)) if names[i].endswith(_BACKWARD))
    passes = names[begun : next(goes_back, len(names))]
    if failing >= begun + len(passes):
        return None
    num_forwards = sum(name.endswith(_FORWARD) for name in passes)
    is_built = num_forwards >= _LEAST_FORWARDS and len(names) == begun + len(passes)
    if between[failing]:  # what is made for it behind the last update is none of the steps'
        begun = updates[-1]
    elif not names[failing].endswith(_EVALUATION) and not is_built:
        return None
    requests = until(recording, int(recording.phase_starts[begun])).requests()
    held = held_of(requests, settings=settings, capacity_bytes=capacity_bytes)
    return held.peak_reserved_bytes
