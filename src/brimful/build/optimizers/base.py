"""What every update rule is given, and the groups that all share."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from brimful.job import Job

Group = dict[str, Any]
Rule = Callable[[list[Group], Job], torch.optim.Optimizer]
"""Makes an optimizer over groups of parameters with the job's rates; one file each."""
Parted = Callable[[list[Group], Rule, Job], torch.optim.Optimizer]
"""Makes the optimizer of which each device keeps a part, from the rule that updates one part."""


def parameter_groups(job: Job, model: nn.Module) -> list[Group]:
    """List the parameters that train: those that decay (matrices), then those that do not.

    A frozen parameter is in neither group, so that it gets no state.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    decays = {"weight_decay": job.weight_decay, "lr": job.learning_rate}
    return [
        {**decays, "params": [p for p in trained if p.ndim > 1]},
        {**decays, "params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
