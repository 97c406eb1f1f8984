"""DDP, and ZeRO-1 beside it: every device holds the whole model.

Gradients are averaged bucket by bucket and are views of the buckets, which exist from the start.
Gradients that are held over several micro-batches are no views: a bucket is filled from them at the
end, and they are filled from it.
Under ZeRO-1 each device keeps the optimizer's state of some parameters, updates those, and sends
them to the others.
"""

import warnings
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from brimful.build.optimizers.base import Group, Rule
from brimful.job import Job


def replicate(root: nn.Module, mesh: DeviceMesh, *, holds: bool) -> nn.Module:
    """Wrap what a micro-batch is called through.

    Args:
        root: Holds the model, on its device.
        mesh: One axis.
        holds: Whether gradients are held over several micro-batches.
    """
    return DistributedDataParallel(
        root, process_group=mesh.get_group(), gradient_as_bucket_view=not holds
    )


def partitioned(
    mesh: DeviceMesh, groups: list[Group], rule: Rule, job: Job
) -> torch.optim.Optimizer:
    """Make an optimizer of which each device keeps a part: whole parameters, evenly by size.

    Args:
        mesh: One axis.
        groups: Of parameters, whole on every device.
        rule: Makes the optimizer of one part.
        job: Says its rates.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its package compiles by torch.jit
        from torch.distributed.optim import ZeroRedundancyOptimizer

    def local(part: list[Group], **_defaults: Any) -> torch.optim.Optimizer:
        return rule(part, job)

    return ZeroRedundancyOptimizer(
        groups, optimizer_class=local, process_group=mesh.get_group(), lr=job.learning_rate
    )
