"""When a block that another stream uses is free again, of what is known without a clock.

The allocator looks at every request whether that stream has done with it. Two bounds are known: the
host has waited for the device, or is as far ahead of it as it can be.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

AHEAD = 1024
"""Launches that a stream holds at most; the next one lets the host wait for the first of them.
Source: measured by users, 1000 or so (forums.developer.nvidia.com/t/68937)."""


def done_from(
    freed: NDArray[np.int64], waits: Sequence[int], launches: Sequence[int], num_events: int
) -> NDArray[np.int64]:
    """Return the event from which others have done with each row for certain; past the last: never.

    ``freed``: the event at which the program frees each row. ``waits``, ``launches``: events before
    which the host waited, or gave the device something to do, rising.
    """
    never = np.full(AHEAD, num_events + 1, dtype=np.int64)
    waited, launched = (
        np.concatenate((np.asarray(each, dtype=np.int64), never)) for each in (waits, launches)
    )
    # A wait after n events comes before event n.
    ahead = np.searchsorted(launched, freed, side="right") + AHEAD - 1
    until: NDArray[np.int64] = np.minimum(
        waited[np.searchsorted(waited, freed, side="right")],
        launched[np.minimum(ahead, len(launched) - 1)],
    )
    return until
