"""ZeRO-2 and ZeRO-3 by FSDP2: every decoder block is a unit, what is left over is another.

A module that is kept in fp32, by the job or by its class, is a unit too, inside of the one that it
lies in: FSDP2 gathers the parameters of a unit in one type. Experts that are parted among devices
(``ep``) belong to their block's unit, but are sharded over the devices that have the same ones, by
expert where that comes out even.

Parameters and optimizer state are sharded by rows. A unit is gathered before it runs; ZeRO-3 frees
it after its forward and gathers it again for its backward, ZeRO-2 keeps it until then. What is left
over (embedding, last norm, head) stays gathered from its forward to the end of backward.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_common as fsdp
from torch.distributed.tensor import Shard

from brimful.build.blocks import decoder_blocks, idle_parameters
from brimful.build.experts import expert_modules
from brimful.build.own import own_memory
from brimful.build.parallel.mesh import EXPERTS, REPLICATE, SAME_EXPERTS
from brimful.build.precision import COMPUTE_DTYPE
from brimful.build.precision.kept import kept_modules
from brimful.errors import UnsupportedError
from brimful.values.job import Job, Precision
from brimful.values.strategy import Strategy

_PLACED = "ShardPlacementResult"
"""What FSDP2 takes for a parameter that is sharded over other devices than its unit, since 2.13."""


class Meshes(NamedTuple):
    """Over which devices what is sharded.

    Attributes:
        data: One axis that shards, or one that replicates and one that shards.
        experts: Of ``mesh.experts_mesh``; None where experts are sharded as all else is.
    """

    data: DeviceMesh | None
    experts: DeviceMesh | None


def policy_of(precision: Precision) -> MixedPrecisionPolicy:
    """Return in which types a recipe's units are gathered, computed and reduced.

    Mixed recipes gather in 16 bits and reduce in fp32; all others gather and reduce as they hold.
    """
    dtype = COMPUTE_DTYPE.get(precision)
    if dtype is None:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)


def shard(model: nn.Module, job: Job, strategy: Strategy, meshes: Meshes) -> None:
    """Shard every block, then the rest, in place.

    ``model``: what a micro-batch is called through, on ``meta``. ``strategy``: says whether units
    stay gathered after forward.
    """
    how: dict[str, Any] = {
        "mesh": meshes.data,
        "reshard_after_forward": strategy.zero == 3,  # noqa: PLR2004 - ZeRO-3
        "mp_policy": policy_of(job.precision),
    }
    if meshes.experts is not None:
        how["shard_placement_fn"] = _apart(expert_modules(model), meshes.experts)
    if idle := set(idle_parameters(model).values()):
        how["ignored_params"] = idle
    wide = {**how, "mp_policy": MixedPrecisionPolicy()}
    for unit, is_kept in units_of(model):
        fully_shard(unit, **(wide if is_kept else how))
    fully_shard(model, **{**how, "reshard_after_forward": False})
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Let gradients be summed, not averaged: each process has its share of one global loss.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot multiply while it reduces


def shard_frozen(model: nn.Module, job: Job, data: DeviceMesh | None) -> None:
    """Shard what is only asked, in place: no backward ends that would free what stays gathered.

    ``model``: what it is called through, on ``meta``. ``data``: over which devices; see ``Meshes``.
    """
    how: dict[str, Any] = {"mesh": data, "reshard_after_forward": True}
    policies = (policy_of(job.precision), MixedPrecisionPolicy())
    for unit, is_kept in units_of(model):
        fully_shard(unit, mp_policy=policies[is_kept], **how)
    fully_shard(model, mp_policy=policies[0], **how)


def units_of(model: nn.Module) -> list[tuple[nn.Module, bool]]:
    """List blocks and kept modules, inner ones first, and whether each is in fp32.

    Raises UnsupportedError: a module holds parameters of two types that train, and none of its own
    parts holds all of one.
    """
    kept, blocks = [*kept_modules(model), *_of_another_type(model)], decoder_blocks(model)
    wide = {id(inner) for module in kept for inner in module.modules()}
    chosen = {id(module) for module in (*kept, *blocks)}
    paths = {path: module for path, module in model.named_modules() if id(module) in chosen}
    inner_first = sorted(paths, key=lambda path: -path.count("."))
    return [(paths[path], id(paths[path]) in wide) for path in inner_first]


def _of_another_type(model: nn.Module) -> list[nn.Module]:
    """List the outermost modules that their class keeps in another type than the model."""
    count = Counter(parameter.dtype for parameter in _trained(model))
    if len(count) < 2:  # noqa: PLR2004 - one type
        return []
    usual = count.most_common(1)[0][0]
    unlike = {
        path: module
        for path, module in model.named_modules()
        if (types := {each.dtype for each in _trained(module)}) and usual not in types
    }
    inside = {id(each) for module in unlike.values() for each in module.parameters()}
    for path, parameter in model.named_parameters():
        is_unlike = parameter.requires_grad and parameter.dtype != usual
        if is_unlike and id(parameter) not in inside:
            kept, others = (str(each).removeprefix("torch.") for each in (parameter.dtype, usual))
            raise UnsupportedError(
                f"{path} is kept in {kept} by its class beside parameters in {others} of one "
                f"module, which FSDP2 does not gather together; use precision=bf16-mixed, which "
                f"holds all in fp32, or zero=0",
                nearest={"precision": "bf16-mixed"},
            )
    outer = [path for path in unlike if path.rpartition(".")[0] not in unlike]
    return [unlike[path] for path in outer]


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _apart(experts: Iterable[nn.Module], mesh: DeviceMesh) -> Callable[[nn.Parameter], Any]:
    """Say over which devices parameters of experts are sharded; all others as their unit is.

    They are cut by expert where each device gets as many, else by the rows of every expert where
    those come out even.
    """
    if not hasattr(fsdp, _PLACED):
        raise UnsupportedError(
            f"ep={mesh[EXPERTS].size()} needs FSDP2's meshes for single parameters, which torch "
            f"{torch.__version__} does not have; use torch>=2.13, or ep=1"
        )
    parted = {parameter for module in experts for parameter in module.parameters()}
    found = _sharing(mesh)

    def place(parameter: nn.Parameter) -> Any:
        if parameter not in parted:
            return None
        num_experts, *rows = own_memory(parameter).shape
        is_even = num_experts % found.shard_mesh_size == 0
        by_rows = not is_even and rows and rows[0] % found.shard_mesh_size == 0
        return fsdp.ShardPlacementResult(Shard(1 if by_rows else 0), found)

    return place


def _sharing(mesh: DeviceMesh) -> Any:
    """Return FSDP2's view of the devices that have the same experts."""
    if mesh[REPLICATE].size() == 1:
        return fsdp.FSDPMeshInfo(mesh[SAME_EXPERTS], shard_mesh_dim=0)
    both = mesh[REPLICATE, SAME_EXPERTS]
    return fsdp.HSDPMeshInfo(both, shard_mesh_dim=1, replicate_mesh_dim=0)


def adopt_sharded(model: nn.Module) -> None:
    """Let FSDP2 find the parameters that have taken the place of those without bytes."""
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        model._apply(_as_it_is)  # noqa: SLF001 - what ``to`` and ``to_empty`` end in


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
