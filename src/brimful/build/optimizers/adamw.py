"""torch's fused AdamW."""

import torch

from brimful.build.optimizers.base import Group
from brimful.values.job import Job


def build(groups: list[Group], job: Job) -> torch.optim.Optimizer:
    """Make fused AdamW."""
    return torch.optim.AdamW(
        groups, lr=job.learning_rate, betas=(job.beta1, job.beta2), eps=job.epsilon, fused=True
    )
