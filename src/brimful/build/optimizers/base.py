"""What every update rule is given, and the groups that all share."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from brimful.job import Job

Group = dict[str, Any]
Rule = Callable[[list[Group], Job], torch.optim.Optimizer]
"""Makes an optimizer over groups of parameters with the job's rates; one file each."""
Parted = Callable[[list[Group], Rule, Job], torch.optim.Optimizer]
"""Makes the optimizer of which each device keeps a part, from the rule that updates one part."""


def parameter_groups(job: Job, model: nn.Module) -> list[Group]:
    """List the parameters that train: those that decay (matrices), then those that do not.

    A frozen parameter is in neither group, so that it gets no state. Parameters that are sharded
    over other devices than the first ones are, as experts can be, come in two groups more: kernels
    that update many at once take those of one mesh.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    decays = {"weight_decay": job.weight_decay, "lr": job.learning_rate}
    groups: list[Group] = []
    for alike in _by_mesh(trained):
        groups.append({**decays, "params": [p for p in alike if p.ndim > 1]})
        groups.append({**decays, "params": [p for p in alike if p.ndim <= 1], "weight_decay": 0.0})
    return groups


def _by_mesh(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Part parameters by the devices that share them, in the order of their first ones."""
    found: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        found.setdefault(mesh, []).append(parameter)
    return list(found.values()) or [[]]
