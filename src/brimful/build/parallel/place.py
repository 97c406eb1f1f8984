"""Which part of a step is this process's own, and sums over all of them.

A step's micro-batches are dealt out in turn to the processes that see different samples, so that
the step's loss is the sum of theirs, whatever their number. Must not know of models.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from brimful.build.parallel.mesh import PIPELINE, REPLICATE, SHARD
from brimful.values.strategy import Strategy, data_parallel

T = TypeVar("T")
_DATA = "data"


def data_rank(strategy: Strategy) -> int:
    """Return which of the groups that see different samples this process is in, from 0.

    Ranks are numbered with ``tp`` innermost and ``pp`` outermost (``mesh``).
    """
    if data_parallel(strategy) == 1:
        return 0
    rank: int = dist.get_rank()
    return rank // strategy.tp % data_parallel(strategy)


def pipeline_rank(strategy: Strategy) -> int:
    """Return which device of its row this process is, from 0."""
    if strategy.pp == 1:
        return 0
    rank: int = dist.get_rank()
    return rank // (strategy.tp * data_parallel(strategy))


def own_part(items: Sequence[T], strategy: Strategy) -> Sequence[T]:
    """Return what of a step's or a sample's parts this process runs; all of it on one device."""
    return items[data_rank(strategy) :: data_parallel(strategy)]


def even_part(items: Sequence[T], strategy: Strategy, *, fill: Callable[[T], T]) -> Sequence[T]:
    """Return ``own_part``, made as long as any process's: all must gather equally often.

    ``fill``: makes what counts for nothing from one that counts.
    """
    num_missing = -len(items) % data_parallel(strategy)
    return own_part([*items, *[fill(items[0])] * num_missing], strategy)


def data_group(mesh: DeviceMesh | None) -> Any:
    """Return the process group of those that see different samples; None where there is one."""
    if mesh is None:
        return None
    names = mesh.mesh_dim_names or ()
    axes = tuple(name for name in (REPLICATE, SHARD) if name in names)
    if not axes:
        return None
    if axes == names and len(axes) == 1:
        return mesh.get_group()
    part = mesh[axes]
    return (part if len(axes) == 1 else part._flatten(_DATA)).get_group()  # noqa: SLF001


def row_group(mesh: DeviceMesh | None) -> Any:
    """Return the process group of a pipeline's row of devices; None where there is none."""
    is_row = mesh is not None and PIPELINE in (mesh.mesh_dim_names or ())
    return mesh[PIPELINE].get_group() if mesh is not None and is_row else None


def summed(number: torch.Tensor, group: Any) -> torch.Tensor:
    """Return the sum of every process's number, in place; as it is without a group.

    ``number``: a tensor on the device, alike in shape everywhere.
    """
    if group is not None:
        dist.all_reduce(number, group=group)
    return number
