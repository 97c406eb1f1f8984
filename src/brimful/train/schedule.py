"""The learning rate as a pure function of the job and the step.

Steps count from 1. In the warm-up step ``s`` has ``s / warmup_steps`` of the peak, so that no step
is wasted on a rate of 0; the line reaches 0 one step after the last, for the same reason.
"""

import math
from collections.abc import Callable

from brimful.values.job import Job, Schedule

FINAL_FRACTION = 0.1
"""The cosine ends at a tenth of the peak, as in Hoffmann et al. 2022, arXiv:2203.15556."""


def learning_rate_at(job: Job, step: int) -> float:
    """Return the learning rate of a step: linear warm-up to the peak, then the job's schedule.

    ``step``: from 1 to ``job.num_steps``.
    """
    if step < job.warmup_steps:
        return job.learning_rate * step / job.warmup_steps
    return job.learning_rate * _FRACTIONS[job.schedule](job, step)


def _cosine(job: Job, step: int) -> float:
    """Fall to a tenth of the peak, reached at the last step."""
    progress = (step - job.warmup_steps) / max(1, job.num_steps - job.warmup_steps)
    cosine = (1 + math.cos(math.pi * progress)) / 2
    return FINAL_FRACTION + (1 - FINAL_FRACTION) * cosine


def _linear(job: Job, step: int) -> float:
    """Fall from the peak, in the step after the warm-up, to 0, one step after the last.

    After the warm-up step ``s`` has what ``transformers.get_linear_schedule_with_warmup``, which
    counts from 0, gives to its step ``s - 1``: the same place in the run.
    """
    num_left = job.num_steps - step + 1
    return min(1.0, num_left / max(1, job.num_steps - job.warmup_steps))


def _constant(_job: Job, _step: int) -> float:
    """Stay at the peak."""
    return 1.0


_FRACTIONS: dict[Schedule, Callable[[Job, int], float]] = {
    "cosine": _cosine,
    "linear": _linear,
    "constant": _constant,
}
"""The fraction of the peak after the warm-up."""
