"""torch's Adafactor: of a matrix's second moment only the means of its rows and columns are kept.

One parameter after another (torch's default for it): the temporary is the estimated moment of one
parameter. The learning rate is the largest relative step, as torch has it. Each parameter is read
twice from the device, its own size and its update's: two host syncs per parameter.
Source: Shazeer and Stern 2018, arXiv:1804.04235; ``torch/optim/_adafactor.py``.
"""

import torch

from brimful.build.optimizers.base import Group
from brimful.values.job import Job


def build(groups: list[Group], job: Job) -> torch.optim.Optimizer:
    """Make Adafactor with torch's own decay, epsilons and clip; betas are not used."""
    return torch.optim.Adafactor(groups, lr=job.learning_rate, foreach=False)
