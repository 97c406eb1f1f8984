"""DDP, and ZeRO-1 beside it: every device holds the whole model.

Gradients are averaged bucket by bucket and are views of the buckets, which exist from the start.
An average, not a sum, because of accumulation: what the last micro-batch left is in the bucket of
every device and is reduced again. So each backward is of the loss times the number of devices.
Gradients that are held over several micro-batches are no views: a bucket is filled from them at the
end, and they are filled from it.
A frozen base that is on the host is no affair of DDP's. Of matrices that are cut it is given this
device's pieces as parameters (``own_leaf``), whose gradients are those of what they are pieces of
between passes.
Under ZeRO-1 each device keeps the optimizer's state of some parameters, fp32 masters among it,
updates those, and sends them to the others that share them; groups that do are alike.
"""

import warnings
from collections.abc import Iterator
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from brimful.build.offload import is_away
from brimful.build.optimizers.base import Group, Rule
from brimful.build.own import leaf_of, own_leaf, own_memory, sharded_as

_NOW, _BEFORE = "forward_sync_buffers", "broadcast_buffers"
_BUFFERS = _NOW if _NOW in signature(DistributedDataParallel.__init__).parameters else _BEFORE
"""What says that buffers are not sent before every forward; renamed in torch 2.13."""
_IGNORED = "_ddp_params_and_buffers_to_ignore"
"""What DDP reads of what it wraps: names of parameters that it leaves alone."""
_CUT = "_brimful_cut"
"""Where what DDP wraps lists the parameters of which it is given pieces."""


def replicate(root: nn.Module, among: ProcessGroup, *, holds: bool) -> nn.Module:
    """Wrap what a micro-batch is called through.

    ``among``: whose samples differ. ``holds``: whether gradients are held over several
    micro-batches.
    """
    named = root.named_parameters(remove_duplicate=False)  # a tied one has two names
    left = [name for name, each in named if is_away(each) or isinstance(each, DTensor)]
    setattr(root, _IGNORED, left)
    cut = [each for each in root.parameters() if isinstance(each, DTensor) and each.requires_grad]
    if cut:
        setattr(root, _CUT, cut)
        root.pieces = nn.ParameterList(map(own_leaf, cut))
    return DistributedDataParallel(
        root,
        process_group=among,
        gradient_as_bucket_view=not holds,
        **{_BUFFERS: False},  # none of a model's is changed by its data
    )


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def lend_gradients(root: nn.Module) -> None:
    """Let gradients of earlier micro-batches be those of pieces, which the next ones add to."""
    for parameter in _cut(root):
        gradient = parameter.grad
        leaf_of(parameter).grad = None if gradient is None else own_memory(gradient)
        parameter.grad = None


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def give_gradients(root: nn.Module) -> None:
    """Let gradients of pieces be those of what they are pieces of, for all that updates it."""
    for parameter in _cut(root):
        leaf = leaf_of(parameter)
        parameter.grad = None if leaf.grad is None else sharded_as(parameter, leaf.grad)
        leaf.grad = None


def _cut(root: nn.Module) -> Iterator[torch.Tensor]:
    """Yield the parameters of which DDP has pieces."""
    for module in root.modules():
        yield from getattr(module, _CUT, ())


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

    class OfPieces(ZeroRedundancyOptimizer):  # type: ignore[misc]  # torch is untyped to mypy
        """Sends what each device has of a parameter; torch's sends no matrices that are cut."""

        def _sync_params(self) -> None:
            sent = [
                dist.broadcast(
                    own_memory(each.detach()), group=among, group_src=rank, async_op=True
                )
                for rank, part in enumerate(self._partition_parameters())
                for group in part
                for each in group["params"]
            ]
            for work in sent:
                work.wait()

    return OfPieces(groups, optimizer_class=local, process_group=among, lr=rate)
