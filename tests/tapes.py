"""Comparing two recordings column by column, whatever numbers their names have."""

import numpy as np

_NUMBERS = (
    "events", "num_bytes", "born", "died", "phase", "phase_starts", "marks", "in_use_until",
)  # fmt: skip
_NAMES = {
    "owner": "owners",
    "op": "ops",
    "node": "nodes",
    "line": "lines",
    "item": "items",
    "shape_dtype": "shapes",
}


def assert_same_tape(found, whole):
    """Hold every column of two tapes to be equal, and what operations did."""
    assert found.phases == whole.phases
    for column in _NUMBERS:
        assert np.array_equal(getattr(found, column), getattr(whole, column)), column
    for column, names in _NAMES.items():
        words = [
            [getattr(tape, names)[i] for i in getattr(tape, column)] for tape in (found, whole)
        ]
        assert words[0] == words[1], column
    assert _stream_order(found) == _stream_order(whole)
    assert found.costs == whole.costs


def _stream_order(recording):
    """Number streams as they come: their own numbers go on from program to program."""
    seen = {}
    return [seen.setdefault(stream, len(seen)) for stream in recording.stream.tolist()]


def taken_by_update(recording):
    """Return the most that the second update has beside what was there when it began."""
    live, phase = recording.live_bytes(), recording.phases.index("step 2 optimizer")
    first, last = recording.phase_starts[phase], recording.phase_starts[phase + 1 :]
    return live[first : last[0] if len(last) else None].max() - live[first]
