"""Many devices: one file per axis, one place that puts them in order.

Owns how a model, its gradients and its optimizer are spread over a process group. Must not know of
tasks or losses. Order: a model is sharded while it has no bytes, so that no device ever holds it
whole; DDP wraps what is there, because it makes buckets for gradients that exist.
"""

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from brimful.build.optimizers.base import Parted
from brimful.build.parallel.mesh import build_mesh
from brimful.build.parallel.replicate import partitioned, replicate
from brimful.build.parallel.shard import adopt_sharded, shard
from brimful.job import Job
from brimful.strategy import Strategy, gathers, num_micro_batches, world_size

__all__ = ["parallelize", "parted", "settle", "sync_gradients"]


def parallelize(root: nn.Module, job: Job, strategy: Strategy, device: torch.device) -> None:
    """Spread a model that has no bytes yet over the devices of a strategy, in place.

    Args:
        root: Holds the model, on ``meta``.
        job: Says in which types is computed and reduced.
        strategy: Says the degrees.
        device: Of this process; its type is the mesh's.
    """
    if gathers(strategy):
        shard(root, job, strategy, build_mesh(strategy, device.type))


def settle(root: nn.Module, job: Job, strategy: Strategy, device: torch.device) -> nn.Module:
    """Finish what needs the model's bytes.

    Args:
        root: Holds the model, on its device.
        job: Says how many micro-batches there are.
        strategy: Says the degrees, and whether gradients are held.
        device: Of this process.

    Returns:
        What a micro-batch is called through.
    """
    if gathers(strategy):
        adopt_sharded(root)
        return root
    if world_size(strategy) > 1:
        holds = strategy.accumulate == "hold" and num_micro_batches(job, strategy) > 1
        return replicate(root, build_mesh(strategy, device.type), holds=holds)
    return root


def parted(strategy: Strategy, device: torch.device) -> Parted | None:
    """Return how the optimizer's state is parted among devices; None where each keeps its own."""
    if strategy.zero != 1:
        return None
    return partial(partitioned, build_mesh(strategy, device.type))


def sync_gradients(root: nn.Module, strategy: Strategy, *, is_last: bool) -> None:
    """Say whether the next backward reduces gradients.

    Args:
        root: What a micro-batch is called through.
        strategy: Says whether gradients are held until the last micro-batch.
        is_last: Whether it is the last of a step.
    """
    reduces = is_last or strategy.accumulate == "reduce-each"
    if isinstance(root, FSDPModule):
        root.set_requires_gradient_sync(reduces)
    elif isinstance(root, DistributedDataParallel):
        held: Any = root
        held.require_backward_grad_sync = reduces  # what its ``no_sync`` sets
