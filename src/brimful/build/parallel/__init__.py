"""Many devices: one file per axis, one place that puts them in order.

Owns how a model, its gradients and its optimizer are spread over a process group. Must not know of
tasks or losses. Order: a model is cut and sharded while it has no bytes, so that no device ever
holds it whole, and cut before it is sharded, because FSDP2 shards the pieces of a group that each
device has; DDP wraps what is there, because it makes buckets for gradients that exist.
"""

from functools import partial
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from brimful.build.optimizers.base import Parted
from brimful.build.parallel.experts import expert_parallel
from brimful.build.parallel.flat import reshard_flat, shard_rows, sync_flat, wrap
from brimful.build.parallel.mesh import EXPERTS, SHARD, TENSOR, build_mesh, data_mesh, experts_mesh
from brimful.build.parallel.place import data_group, pipeline_rank
from brimful.build.parallel.replicate import (
    give_gradients,
    lend_gradients,
    partitioned,
    replicate,
)
from brimful.build.parallel.shard import Meshes, adopt_sharded, shard, shard_frozen
from brimful.build.parallel.stages import cut_stages
from brimful.build.parallel.tensor import tensor_parallel
from brimful.values.job import Job
from brimful.values.strategy import (
    COMPILED,
    Strategy,
    gathers,
    is_flat,
    num_micro_batches,
    split_of,
)

__all__ = [
    "averaged_over",
    "build_mesh",
    "give_gradients",
    "lend_gradients",
    "parallelize",
    "parallelize_frozen",
    "parted",
    "reshard",
    "settle",
    "settle_frozen",
    "sync_gradients",
    "without_sync",
]


def parallelize(
    root: nn.Module, job: Job, strategy: Strategy, mesh: DeviceMesh | None
) -> tuple[nn.Module, ...]:
    """Spread a model that has no bytes yet over the devices of a strategy, in place.

    ``root``: holds the model, on ``meta``. Returns what is called: the root, or this device's
    stages of a pipeline.
    """
    spread = None
    if mesh is not None and strategy.ep > 1:
        spread = experts_mesh(strategy, mesh.device_type)
        is_compiled = "blocks" in COMPILED[strategy.compile]
        expert_parallel(root.model, spread[EXPERTS], is_compiled=is_compiled)
    if mesh is not None and strategy.tp > 1:
        tensor_parallel(root.model, mesh[TENSOR])
    called: tuple[nn.Module, ...] = (root,)
    if strategy.pp > 1:
        place = pipeline_rank(strategy)
        called = cut_stages(root.model, job.model, split_of(strategy), place)
    data = data_mesh(mesh)
    if is_flat(strategy) and data is not None:
        shard_rows(root, data)
    elif gathers(strategy):
        for whole in called:
            shard(whole, job, strategy, Meshes(data, spread))
    return called


def parallelize_frozen(
    root: nn.Module, job: Job, strategy: Strategy, mesh: DeviceMesh | None
) -> None:
    """Spread a second model, which has no bytes yet and never trains, as the first is sharded."""
    if gathers(strategy):
        shard_frozen(root, job, data_mesh(mesh))


def settle_frozen(root: nn.Module, strategy: Strategy) -> None:
    """Finish what needs a second model's bytes."""
    if gathers(strategy):
        adopt_sharded(root)


def settle(root: nn.Module, job: Job, strategy: Strategy, mesh: DeviceMesh | None) -> nn.Module:
    """Finish what needs the model's bytes.

    Returns what a micro-batch is called through.
    """
    spread = data_mesh(mesh)
    if is_flat(strategy) and spread is not None:
        return wrap(root, job, strategy, spread)
    if gathers(strategy):
        adopt_sharded(root)
        return root
    if spread is not None:
        holds = strategy.accumulate == "hold" and num_micro_batches(job, strategy) > 1
        return replicate(root, data_group(mesh), holds=holds)
    return root


def parted(strategy: Strategy, mesh: DeviceMesh | None) -> Parted | None:
    """Return how the optimizer's state is parted among devices; None where each keeps its own."""
    if strategy.zero != 1 or mesh is None:
        return None
    return partial(partitioned, mesh.get_group(SHARD))


def sync_gradients(root: nn.Module, strategy: Strategy, *, is_last: bool) -> None:
    """Say whether the next backward reduces gradients.

    ``strategy``: says whether gradients are held until the last micro-batch. ``is_last``: whether
    it is the last of a step.
    """
    reduces = is_last or strategy.accumulate == "reduce-each"
    if is_flat(strategy):
        sync_flat(root, reduces=reduces)
    elif isinstance(root, FSDPModule):
        root.set_requires_gradient_sync(reduces)
    elif isinstance(root, DistributedDataParallel):
        held: Any = root
        held.require_backward_grad_sync = reduces  # what its ``no_sync`` sets


def averaged_over(root: nn.Module) -> int:
    """Return by how many devices gradients are divided when they are reduced; 1: they add up."""
    return root.process_group.size() if isinstance(root, DistributedDataParallel) else 1


def without_sync(root: nn.Module) -> nn.Module:
    """Return what a forward pass that nothing follows is called through: DDP adds nothing to it."""
    inner: nn.Module = root.module if isinstance(root, DistributedDataParallel) else root
    return inner


def reshard(root: nn.Module) -> None:
    """Let go of what a forward pass without a backward left gathered."""
    reshard_flat(root)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
