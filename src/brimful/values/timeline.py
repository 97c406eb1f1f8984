"""What of live bytes over time a chart can show: a series thinned, a limit near enough."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brimful.values.results import Timeline

NUM_BUCKETS = 600
"""Twice as many points as this are kept: the lowest and the highest of every bucket."""


LIMIT_IN_VIEW = 2.5
"""The limit is drawn up to this many times the peak; beyond, it would flatten everything else."""


def thin(
    live_bytes: NDArray[Any], *, phase_starts: Sequence[int], phases: Sequence[str]
) -> Timeline:
    """Keep the lowest and highest sample of every bucket of events, so that every peak stays.

    Buckets end where phases do, so that every phase keeps its own peak.

    ``live_bytes``: bytes alive after each event.
    """
    num_events = len(live_bytes)
    edges = np.linspace(0, num_events, min(NUM_BUCKETS, num_events) + 1).astype(int)
    kept: set[int] = set()
    for start, stop in pairwise(edges):
        bucket = live_bytes[start:stop]
        kept.update((int(start + bucket.argmin()), int(start + bucket.argmax())))
    events = sorted(kept)
    return Timeline(
        event=tuple(events),
        live_bytes=tuple(int(live_bytes[e]) for e in events),
        phase_starts=tuple(int(e) for e in phase_starts),
        phases=tuple(phases),
    )


def limit_in_view(usable_bytes: float, peak_bytes: float) -> bool:
    """Whether the limit is near enough to the peak to share a scale with it."""
    return usable_bytes <= LIMIT_IN_VIEW * peak_bytes
