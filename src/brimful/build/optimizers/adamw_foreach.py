"""torch's AdamW on whole lists of parameters: many kernels, and one temporary as large as a moment.

State as of ``adamw``. The temporary is the root of every second moment at once: 4 bytes per fp32
parameter, 2 per 16-bit one, while the update lasts.
Source: ``_multi_tensor_adam`` in ``torch/optim/adam.py``, ``exp_avg_sq_sqrt``.
"""

import torch

from brimful.build.optimizers.base import Group
from brimful.job import Job


def adamw_foreach(groups: list[Group], job: Job) -> torch.optim.Optimizer:
    """Make AdamW over lists of parameters."""
    return torch.optim.AdamW(
        groups, lr=job.learning_rate, betas=(job.beta1, job.beta2), eps=job.epsilon, foreach=True
    )
