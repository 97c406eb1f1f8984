"""ZeRO-2 and ZeRO-3 by FSDP2: every decoder block is a unit, what is left over is another.

A module that is kept in fp32 is a unit too, inside of the one that it lies in: FSDP2 gathers the
parameters of a unit in one type.

Parameters and optimizer state are sharded by rows. A unit is gathered before it runs; ZeRO-3 frees
it after its forward and gathers it again for its backward, ZeRO-2 keeps it until then. What is left
over (embedding, last norm, head) stays gathered from its forward to the end of backward.
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from brimful.build.blocks import decoder_blocks
from brimful.build.precision import COMPUTE_DTYPE
from brimful.build.precision.kept import kept_modules
from brimful.job import Job, Precision
from brimful.strategy import Strategy


def policy_of(precision: Precision) -> MixedPrecisionPolicy:
    """Return in which types a recipe's units are gathered, computed and reduced.

    Mixed recipes gather in 16 bits and reduce in fp32; all others gather and reduce as they hold.
    """
    dtype = COMPUTE_DTYPE.get(precision)
    if dtype is None:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)


def shard(model: nn.Module, job: Job, strategy: Strategy, mesh: DeviceMesh | None) -> None:
    """Shard every block, then the rest, in place.

    Args:
        model: What a micro-batch is called through, on ``meta``.
        job: Says the types.
        strategy: Says whether units stay gathered after forward.
        mesh: One axis that shards, or one that replicates and one that shards.
    """
    how: dict[str, Any] = {
        "mesh": mesh,
        "reshard_after_forward": strategy.zero == 3,  # noqa: PLR2004 - ZeRO-3
        "mp_policy": policy_of(job.precision),
    }
    wide = {**how, "mp_policy": MixedPrecisionPolicy()}
    for unit, is_kept in _units(model):
        fully_shard(unit, **(wide if is_kept else how))
    fully_shard(model, **{**how, "reshard_after_forward": False})
    for module in model.modules():
        if isinstance(module, FSDPModule):
            _add_up(module)


def _units(model: nn.Module) -> list[tuple[nn.Module, bool]]:
    """List blocks and kept modules, inner ones first, and whether each is in fp32."""
    kept, blocks = kept_modules(model), decoder_blocks(model)
    wide = {id(inner) for module in kept for inner in module.modules()}
    chosen = {id(module) for module in (*kept, *blocks)}
    paths = {path: module for path, module in model.named_modules() if id(module) in chosen}
    inner_first = sorted(paths, key=lambda path: -path.count("."))
    return [(paths[path], id(paths[path]) in wide) for path in inner_first]


def _add_up(unit: FSDPModule) -> None:
    """Let gradients be summed, not averaged: each process has its share of one global loss."""
    unit.set_gradient_divide_factor(1.0)
    unit.set_force_sum_reduction_for_comms(True)  # gloo cannot multiply while it reduces


def adopt_sharded(model: nn.Module) -> None:
    """Let FSDP2 find the parameters that have taken the place of those without bytes."""
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        model._apply(_as_it_is)  # noqa: SLF001 - what ``to`` and ``to_empty`` end in


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
