"""Of passes that belong to no step: what they keep, and what training alone takes."""

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from brimful.allocator.config import AllocatorSettings
from brimful.pretend.before_evaluation import before_evaluation, phase_of
from brimful.pretend.recording import Recording
from brimful.pretend.report_values import PretendReport, UnusedGraphs
from brimful.pretend.script_lines import ScriptLine, own_lines_of
from brimful.pretend.unused_graphs import Unused, forwards_of

_UPDATE, _FORWARD, _EVALUATION = "optimizer", "forward", "eval"
_MOST_STEPS = 0.5
"""Of which a pass between some of them is no part."""
_LEAST_ALIKE = 0.5
"""Of what an evaluation makes, which has sizes of training's where its batch is as large."""


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
    phase = phase_of(recording, event)
    return msgspec.structs.replace(
        report,
        unused_graphs=_unused_graphs(recording, unused, places),
        before_evaluation_bytes=before_evaluation(
            recording, failure, settings, report.at_capacity.capacity_bytes, between
        ),
        is_between_steps=bool(between[phase]) or _has_other_rows(recording, phase),
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


def _has_other_rows(recording: Recording, phase: int) -> bool:
    """Whether a phase is an evaluation of more or fewer rows than training has in a batch."""
    if not recording.phases[phase].endswith(_EVALUATION):
        return False
    forwards = [i for i, name in enumerate(recording.phases) if name.endswith(_FORWARD)]
    kinds = np.unique(recording.shape_dtype[np.isin(recording.phase, forwards)])
    trained = {recording.shapes[kind][0] for kind in kinds.tolist()}
    made = recording.phase == phase
    num_bytes = recording.num_bytes[made].astype(np.float64)
    alike = [recording.shapes[kind][0] in trained for kind in recording.shape_dtype[made].tolist()]
    return bool(trained) and num_bytes[alike].sum() < _LEAST_ALIKE * num_bytes.sum()


def _unused_graphs(
    recording: Recording, unused: Unused, places: Sequence[ScriptLine]
) -> UnusedGraphs | None:
    rows = unused.rows
    if not len(rows):
        return None
    sizes = recording.num_bytes[rows]
    most = int(np.bincount(recording.phase[rows], sizes).argmax())
    forwards = [i for i, name in enumerate(recording.phases) if name.endswith(_FORWARD)]
    others = np.setdiff1d(forwards, recording.phase[unused.every]).tolist()
    made = forwards_of(recording, rows).tolist()
    own = own_lines_of(made, others, recording.phases, places)
    return UnusedGraphs(
        num_bytes=int(sizes.sum()),
        num_forwards=_num_passes(made, own, places),
        called_at=own[made.index(most)],
    )


def _num_passes(made: Sequence[int], own: Sequence[str], places: Sequence[ScriptLine]) -> int:
    """Count forward passes: each of what a line comes to may call several modules.

    ``own``: the line of each that is ``made``; empty: not known.
    """
    if "" in own:
        return len(made)
    counts = Counter((line, places[phase - 1].line) for phase, line in zip(made, own, strict=True))
    most: dict[str, int] = {}
    for (line, _), num in counts.items():
        most[line] = max(num, most.get(line, 0))
    return sum(most.values())
