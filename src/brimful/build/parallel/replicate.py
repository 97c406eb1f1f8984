"""DDP, and ZeRO-1 beside it: every device holds the whole model.

Gradients are averaged bucket by bucket and are views of the buckets, which exist from the start.
An average, not a sum, because of accumulation: what the last micro-batch left is in the bucket of
every device and is reduced again. So each backward is of the loss times the number of devices.
Gradients that are held over several micro-batches are no views: a bucket is filled from them at the
end, and they are filled from it.
A frozen base that is on the host is no affair of DDP's.
Under ZeRO-1 each device keeps the optimizer's state of some parameters, fp32 masters among it,
updates those, and sends them to the others that share them; groups that do are alike.
"""

import warnings
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from brimful.build.offload import is_away
from brimful.build.optimizers.base import Group, Rule

_NOW, _BEFORE = "forward_sync_buffers", "broadcast_buffers"
_BUFFERS = _NOW if _NOW in signature(DistributedDataParallel.__init__).parameters else _BEFORE
"""What says that buffers are not sent before every forward; renamed in torch 2.13."""
_IGNORED = "_ddp_params_and_buffers_to_ignore"
"""What DDP reads of what it wraps: names of parameters that it leaves alone."""


def replicate(root: nn.Module, among: ProcessGroup, *, holds: bool) -> nn.Module:
    """Wrap what a micro-batch is called through.

    ``among``: whose samples differ. ``holds``: whether gradients are held over several
    micro-batches.
    """
    setattr(root, _IGNORED, [name for name, each in root.named_parameters() if is_away(each)])
    return DistributedDataParallel(
        root,
        process_group=among,
        gradient_as_bucket_view=not holds,
        **{_BUFFERS: False},  # none of a model's is changed by its data
    )


def partitioned(
    among: ProcessGroup, groups: list[Group], rule: Rule, rate: float
) -> torch.optim.Optimizer:
    """Make an optimizer of which each device keeps a part: whole parameters, evenly by size.

    ``among``: who shares them. ``rule``: updates a part. ``rate``: the first.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its package compiles by torch.jit
        from torch.distributed.optim import ZeroRedundancyOptimizer

    def local(part: list[Group], **_defaults: Any) -> torch.optim.Optimizer:
        return rule(part)

    return ZeroRedundancyOptimizer(groups, optimizer_class=local, process_group=among, lr=rate)
