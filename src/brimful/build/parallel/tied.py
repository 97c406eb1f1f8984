"""A weight that the first and the last stage of a pipeline both have: the tied embedding.

Each has a copy. Their gradients are added up before the update, so that the copies stay equal, and
the first device's counts in the gradient norm.
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from brimful.build.own import leaf_of, own_memory
from brimful.build.parallel.place import pipeline_rank, row_group
from brimful.build.parallel.stages import Absent
from brimful.techniques.parallel.stages import V_SHAPED
from brimful.values.job import Job
from brimful.values.strategy import Strategy, data_parallel


class Tied(NamedTuple):
    """This device's copy of a tied weight.

    Attributes:
        weight: The copy.
        name: Of the embedding's weight in the whole model.
        group: The two devices that have one.
        is_first: Whether this device has the embedding, whose gradient is counted.
    """

    weight: torch.Tensor
    name: str
    group: Any
    is_first: bool


def tied_ends(model: Any, job: Job, strategy: Strategy, mesh: DeviceMesh | None) -> Tied | None:
    """Return this device's copy of the tied weight; None where it has none or there is no other.

    All devices call this: groups of processes are made.

    ``strategy``: says where the ends of the pipeline are.
    """
    if not job.model.tied_embeddings or strategy.pp_schedule in V_SHAPED:
        return None  # a V begins and ends on one device
    place = pipeline_rank(strategy)
    group = _group_of_ends(strategy, mesh)
    if 0 < place < strategy.pp - 1:
        return None
    first, last = model.get_input_embeddings(), model.get_output_embeddings()
    weight = last.weight if isinstance(first, Absent) else first.weight
    name = next(name for name, module in model.named_modules() if module is first)
    return Tied(weight, f"{name}.weight", group, place == 0)


def add_up(tied: Tied) -> None:
    """Add up the gradients of both copies, in place; a frozen weight has none."""
    if tied.weight.requires_grad:
        dist.all_reduce(own_memory(leaf_of(tied.weight).grad), group=tied.group)


def _group_of_ends(strategy: Strategy, mesh: DeviceMesh | None) -> Any:
    if strategy.pp == 2:  # noqa: PLR2004 - the ends are all there is
        return row_group(mesh)
    stride = data_parallel(strategy) * strategy.tp
    far = (strategy.pp - 1) * stride
    groups = [dist.new_group([near, near + far]) for near in range(stride)]
    return groups[dist.get_rank() % stride]
