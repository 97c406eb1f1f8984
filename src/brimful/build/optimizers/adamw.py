"""torch's fused AdamW: one kernel updates in place, with no temporary of the size of a parameter.

State: two moments in the type of the parameter, and a step count.
"""

import torch

from brimful.build.optimizers.base import Group
from brimful.job import Job


def adamw(groups: list[Group], job: Job) -> torch.optim.Optimizer:
    """Make fused AdamW."""
    return torch.optim.AdamW(
        groups, lr=job.learning_rate, betas=(job.beta1, job.beta2), eps=job.epsilon, fused=True
    )
