"""The beginning of a recording, as of a program that was ended there."""

from dataclasses import replace

import numpy as np

from brimful.pretend.recording import NEVER, Recording


def until(recording: Recording, event: int) -> Recording:
    """Return what was recorded before an event.

    ``event``: the first that is left out.
    """
    events = recording.events[:event]
    num_rows = int((events >= 0).sum())  # rows are numbered as they are made
    num_phases = int((recording.phase_starts <= event).sum())
    names = ("num_bytes", "born", "stream", "owner", "op", "node", "line", "phase", "item",
             "shape_dtype", "in_use_until")  # fmt: skip
    columns = {name: getattr(recording, name)[:num_rows] for name in names}
    died = recording.died[:num_rows]
    return replace(
        recording,
        **columns,
        events=events,
        died=np.where(died < event, died, NEVER),
        phases=recording.phases[:num_phases],
        phase_starts=recording.phase_starts[:num_phases],
        marks=recording.marks[recording.marks <= event],
        cache_flushes=recording.cache_flushes[recording.cache_flushes <= event],
        costs=tuple(cost for cost in recording.costs if cost.event <= event),
    )
