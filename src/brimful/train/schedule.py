"""The learning rate as a pure function of the job and the step."""

import math

from brimful.job import Job

FINAL_FRACTION = 0.1
"""The cosine ends at a tenth of the peak, as in Hoffmann et al. 2022, arXiv:2203.15556."""


def learning_rate_at(job: Job, step: int) -> float:
    """Return the learning rate of a step: linear warm-up to the peak, then a cosine to a tenth.

    Args:
        job: Gives peak, warm-up and length.
        step: From 1 to ``job.num_steps``.
    """
    if step < job.warmup_steps:
        return job.learning_rate * step / job.warmup_steps
    progress = (step - job.warmup_steps) / max(1, job.num_steps - job.warmup_steps)
    cosine = (1 + math.cos(math.pi * progress)) / 2
    return job.learning_rate * (FINAL_FRACTION + (1 - FINAL_FRACTION) * cosine)
