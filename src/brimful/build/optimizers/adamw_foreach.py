"""torch's AdamW on whole lists of parameters."""

import torch

from brimful.build.optimizers.base import Group
from brimful.values.job import Job


def build(groups: list[Group], job: Job) -> torch.optim.Optimizer:
    """Make AdamW over lists of parameters."""
    return torch.optim.AdamW(
        groups, lr=job.learning_rate, betas=(job.beta1, job.beta2), eps=job.epsilon, foreach=True
    )
