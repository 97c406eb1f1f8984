"""Of passes that belong to no step: what they keep, and what training alone takes."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from brimful.allocator.config import AllocatorSettings
from brimful.pretend.before_evaluation import before_evaluation, phase_of
from brimful.pretend.recording import Recording
from brimful.pretend.report_values import PretendReport, UnusedGraphs
from brimful.pretend.script_lines import ScriptLine, own_line_of
from brimful.pretend.unused_graphs import Unused, num_forwards

_UPDATE, _FORWARD = "optimizer", "forward"
_MOST_STEPS = 0.5
"""Of which a pass between some of them is no part."""


def with_passes(
    report: PretendReport,
    recording: Recording,
    unused: Unused,
    *,
    settings: AllocatorSettings,
    places: Sequence[ScriptLine],
) -> PretendReport:
    """Return a report that knows which passes nothing goes back through.

    ``places``: the script's line of each phase but the first; empty: not known.
    """
    between = _between_steps(recording, unused.passes)
    failure = report.at_capacity.failure
    event = report.peak_event if failure is None else failure.event
    return msgspec.structs.replace(
        report,
        unused_graphs=_unused_graphs(recording, unused, places),
        before_evaluation_bytes=before_evaluation(
            recording, failure, settings, report.at_capacity.capacity_bytes, between
        ),
        is_between_steps=bool(between[phase_of(recording, event)]),
    )


def _between_steps(recording: Recording, passes: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Tell which passes stand between steps of training that are alike without them.

    ``passes``: [phases], those of which nothing is gone back through.
    """
    words = [name.split() for name in recording.phases]
    step = np.array([int(each[1]) if each[0] == "step" else 0 for each in words])
    updated = {num for num, each in zip(step.tolist(), words, strict=True) if each[-1] == _UPDATE}
    have = updated & {*step[passes].tolist()}
    return passes if len(have) <= _MOST_STEPS * len(updated) else np.zeros_like(passes)


def _unused_graphs(
    recording: Recording, unused: Unused, places: Sequence[ScriptLine]
) -> UnusedGraphs | None:
    rows = unused.rows
    if not len(rows):
        return None
    sizes = recording.num_bytes[rows]
    most = int(np.bincount(recording.phase[rows], sizes).argmax())
    forwards = [i for i, name in enumerate(recording.phases) if name.endswith(_FORWARD)]
    others = np.setdiff1d(forwards, recording.phase[unused.every])
    return UnusedGraphs(
        num_bytes=int(sizes.sum()),
        num_forwards=num_forwards(recording, rows),
        called_at=own_line_of(most, others.tolist(), recording.phases, places),
    )
