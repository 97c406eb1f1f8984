"""torch's SGD with momentum, fused for fp32 parameters.

16-bit parameters are updated one after another, with a temporary of one parameter where it decays:
on a CPU the fused kernel of torch 2.13 leaves most of a 16-bit parameter as it was, without a word
(pytorch/pytorch#191763).
"""

import torch

from brimful.build.optimizers.base import Group
from brimful.job import Job


def build(groups: list[Group], job: Job) -> torch.optim.Optimizer:
    """Make SGD whose momentum is ``beta1``."""
    wide = all(p.dtype == torch.float32 for group in groups for p in group["params"])
    kernels = {"fused": True} if wide else {"foreach": False}
    return torch.optim.SGD(groups, lr=job.learning_rate, momentum=job.beta1, **kernels)
