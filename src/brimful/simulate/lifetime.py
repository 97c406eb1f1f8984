"""Phases of a run besides its steps, on request: judging, saving and resuming, run and read.

Apart from ``simulate`` because few ask: a step and what comes behind it are traced once more, and a
resumed program from its beginning. A simulation takes the phases in (``with_phases``).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from brimful.hardware.cluster import Cluster
from brimful.pretend.reading import items_at, owners_at
from brimful.pretend.recording import Recording
from brimful.simulate.phases import Continuation, Keeping, judged, resumed, saved
from brimful.simulate.run import trace
from brimful.simulate.unrolled import record_whole
from brimful.values.job import Job
from brimful.values.plan import PhasePeak
from brimful.values.results import EVAL, RESUME, SAVE, PhaseContent, Simulation
from brimful.values.strategy import Strategy


def simulate_phases(
    job: Job, cluster: Cluster, strategy: Strategy, keeping: Keeping[Any], names: Sequence[str]
) -> tuple[PhaseContent, ...]:
    """Run phases of a run and tell what is alive at the peak of each.

    ``names``: of ``EVAL``, ``SAVE`` and ``RESUME``.
    """
    kept: dict[int, Any] = {}
    run = _Tracer(cluster, keeping, kept)
    found = []
    if EVAL in names or SAVE in names:
        then = [judged] * (EVAL in names) + [saved(keeping, kept)]
        recording = record_whole(job, strategy, lambda j, s: run.behind_a_step(j, s, then))
        found = [_content(recording, name) for name in (EVAL, SAVE) if name in names]
    if RESUME in names:
        # Whole: the room that is made for a state has no owners by whom it could be unrolled.
        found.append(_content(run.from_a_save(job, strategy), RESUME))
    return tuple(found)


class _Tracer(NamedTuple):
    """Traces programs; what each saved is kept by its depth: of a few blocks, or of all."""

    cluster: Cluster
    keeping: Keeping[Any]
    kept: dict[int, Any]

    def behind_a_step(self, job: Job, strategy: Strategy, then: list[Continuation]) -> Recording:
        """Record a step, and what comes behind it."""
        return self._trace(job, strategy, 1, then)

    def from_a_save(self, job: Job, strategy: Strategy) -> Recording:
        """Record a program that goes on from what one like it saved."""
        if job.model.num_layers not in self.kept:
            self._trace(job, strategy, 1, [saved(self.keeping, self.kept)])
        then = [resumed(self.keeping, self.kept[job.model.num_layers])]
        return self._trace(job, strategy, 0, then)

    def _trace(
        self, job: Job, strategy: Strategy, num_steps: int, then: list[Continuation]
    ) -> Recording:
        kernels, capability = self.cluster.device.kernels, self.cluster.device.capability
        traced = trace(
            job, strategy, imitate=kernels, capability=capability, num_steps=num_steps, then=then
        )
        return traced.recording


def _content(recording: Recording, phase: str) -> PhaseContent:
    """Read what is alive at the highest point of a phase; of one without events, at its start."""
    number = recording.phases.index(phase)
    live = recording.live_bytes()
    ends = np.append(recording.phase_starts[1:], len(live))
    start, end = max(0, int(recording.phase_starts[number]) - 1), int(ends[number])
    event = start + int(live[start : max(end, start + 1)].argmax())
    items = tuple(msgspec.structs.replace(item, phase=phase) for item in items_at(recording, event))
    return PhaseContent(phase=phase, items=items, owners=owners_at(recording, event))


def with_phases(simulation: Simulation, contents: Sequence[PhaseContent]) -> Simulation:
    """Return a simulation that knows of more phases; its peak is the highest of all."""
    peaks = tuple(
        PhasePeak(phase=c.phase, num_bytes=peak_bytes(c), where=c.phase) for c in contents
    )
    known = msgspec.structs.replace(
        simulation,
        phases=(*simulation.phases, *peaks),
        contents=(*simulation.contents, *contents),
    )
    highest = max(contents, key=peak_bytes, default=None)
    if highest is None or peak_bytes(highest) <= simulation.simulated_peak_allocated_bytes:
        return known
    return msgspec.structs.replace(
        known,
        items=highest.items,
        owners=highest.owners,
        simulated_peak_allocated_bytes=peak_bytes(highest),
    )


def peak_bytes(content: PhaseContent) -> int:
    """Return the peak of a phase: the sum of its items."""
    return sum(item.num_bytes for item in content.items)
