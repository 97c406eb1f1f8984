"""ZeRO-2 and ZeRO-3 by FSDP1: a unit's parameters are one flat parameter, cut into equal pieces.

Every decoder block is a unit, what is left over is another; of adapters each layer that trains is
one too, as PEFT wraps them for FSDP1: a flat parameter trains whole or not at all.

A model is first sharded by rows, as DTensors, so that no device ever holds all of it and its first
weights are those of one device (``draw``). Then each unit is gathered in turn and handed to FSDP1,
which keeps this device's piece. What a parameter is between two steps is then a range of its
numbers, which may begin in the middle of a row: ``own.Range``.
"""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp import _runtime_utils as runtime
from torch.distributed.tensor import DTensor, Shard

from brimful.build.blocks import decoder_blocks
from brimful.build.own import Range, mark_range
from brimful.build.parallel.mesh import REPLICATE, SHARD
from brimful.build.parallel.pieces import Pieces, cut_parameters
from brimful.build.precision import COMPUTE_DTYPE
from brimful.errors import UnsupportedError
from brimful.techniques.parallel.flat import sharding_of
from brimful.values.job import Job, Precision
from brimful.values.strategy import Strategy

_PRIVATE = {"HYBRID_SHARD_ZERO2": "_HYBRID_SHARD_ZERO2"}
"""What torch calls a strategy that has no public name there."""
_WRAPPED = "_fsdp_wrapped_module"
"""What FSDP1 puts into the path of everything that lies in a unit."""


def policy_of(precision: Precision) -> MixedPrecision | None:
    """Return in which types a recipe's units are gathered and reduced; None: as they are held.

    That is what FSDP2 is told: mixed recipes gather in 16 bits, cast what comes into a unit, and
    reduce in fp32.
    """
    dtype = COMPUTE_DTYPE.get(precision)
    if dtype is None:
        return None
    return MixedPrecision(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=True)


def shard_rows(root: nn.Module, mesh: DeviceMesh) -> None:
    """Shard every parameter by rows, in place, on ``meta``: how it is until ``wrap``.

    ``mesh``: of one axis that shards, or of one that replicates and one that shards. Raises
    UnsupportedError: a unit would have parameters of several types, or share one with another.
    """
    _check_units(root)
    axis, pieces = _sharing(mesh), Pieces()
    for module in root.modules():
        names = [name for name, _ in module.named_parameters(recurse=False)]
        cut_parameters(module, axis, pieces, **dict.fromkeys(names, Shard(0)))


def wrap(root: nn.Module, job: Job, strategy: Strategy, mesh: DeviceMesh) -> nn.Module:
    """Hand every unit to FSDP1, then the rest, in place.

    ``root``: what a micro-batch is called through; of ``shard_rows``, with its weights.
    ``strategy``: says whether units stay gathered after forward, and whether there are replicas.
    ``mesh``: of one axis that shards, or of one that replicates and one that shards. Returns what a
    micro-batch is called through from now on.
    """
    word = sharding_of(strategy)
    how: dict[str, Any] = {
        "device_mesh": mesh,
        "sharding_strategy": ShardingStrategy[_PRIVATE.get(word, word)],
        "mixed_precision": policy_of(job.precision),
        "use_orig_params": True,
        "device_id": next(root.parameters()).device,
    }
    for unit in list(_units(root)):
        setattr(unit.parent, unit.name, _flattened(unit.module, how))
    return _flattened(root, how)


def plain_path(path: str) -> str:
    """Return a path, or the name of a parameter, as it is in the model without FSDP1."""
    return path.replace(f"{_WRAPPED}.", "").removesuffix(f".{_WRAPPED}")


@contextlib.contextmanager
def unwrapped(model: nn.Module) -> Iterator[None]:
    """Put units into the places of FSDP1's around them inside the block: theirs are other names.

    Nor are there hooks then, which would gather the whole model to say what it keeps.

    ``model``: between two steps; without FSDP1 it stays as it is.
    """
    around = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, FullyShardedDataParallel)
    ]
    for parent, name, child in around:
        parent._modules[name] = child.module  # noqa: SLF001 - which takes any name
    try:
        yield
    finally:
        for parent, name, child in around:
            parent._modules[name] = child  # noqa: SLF001


def sync_flat(root: nn.Module, *, reduces: bool) -> None:
    """Say whether the next backward reduces gradients; nothing where FSDP1 is not."""
    for unit in _wrapped(root):
        unit._sync_gradients = reduces  # noqa: SLF001 - what its ``no_sync`` sets


def reshard_flat(root: nn.Module) -> None:
    """Let go of what a forward pass without a backward left gathered by FSDP1."""
    for unit in _wrapped(root):
        if unit._handle is not None:  # noqa: SLF001
            runtime._reshard(unit, unit._handle, True)  # noqa: SLF001


def _wrapped(root: nn.Module) -> Iterator[Any]:
    return (unit for unit in root.modules() if isinstance(unit, FullyShardedDataParallel))


def _sharing(mesh: DeviceMesh) -> DeviceMesh:
    """Return the axis of the devices that share one copy."""
    return mesh[SHARD] if REPLICATE in (mesh.mesh_dim_names or ()) else mesh


class _Unit(NamedTuple):
    """A unit below the root, and where it hangs."""

    parent: nn.Module
    name: str
    module: nn.Module


def _units(root: nn.Module) -> list[_Unit]:
    """List the units below the root, inner ones first."""
    chosen = {id(block) for block in decoder_blocks(root)}
    if any(not parameter.requires_grad for parameter in root.parameters()):
        chosen |= {id(module) for module in root.modules() if _trains_alone(module)}
    found = {
        f"{path}.{name}": _Unit(parent, name, child)
        for path, parent in root.named_modules()
        for name, child in parent.named_children()
        if id(child) in chosen
    }
    return [found[path] for path in sorted(found, key=lambda path: -path.count("."))]


def _trains_alone(module: nn.Module) -> bool:
    """Whether PEFT's policy wraps a module: a layer with none inside of it, whose weight trains."""
    weight = getattr(module, "weight", None)
    return next(module.children(), None) is None and weight is not None and weight.requires_grad


def _check_units(root: nn.Module) -> None:
    """Refuse units that FSDP1 makes no flat parameter of, or a wrong one."""
    seen: set[nn.Parameter] = set()
    for unit in (*(each.module for each in _units(root)), root):
        whole = list(unit.parameters())
        own = [parameter for parameter in whole if parameter not in seen]
        types = sorted({str(parameter.dtype) for parameter in own})
        if len(types) > 1:
            raise UnsupportedError(
                f"fsdp=1 makes one flat parameter of each {type(unit).__name__}, and this one has "
                f"parameters in {' and '.join(types)}; use fsdp=2"
            )
        seen.update(whole)


def _flattened(unit: nn.Module, how: dict[str, Any]) -> FullyShardedDataParallel:
    """Gather a unit, and let FSDP1 keep this device's piece of it."""
    _gather(unit)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of units that do not train as a whole
        flat = FullyShardedDataParallel(unit, **how)
    # Gradients are summed, not averaged: each process has its share of one global loss.
    flat._gradient_predivide_factor = flat._gradient_postdivide_factor = 1.0  # noqa: SLF001
    parameter: Any = flat._flat_param  # noqa: SLF001
    if parameter is not None:
        every = parameter._params, parameter._shapes, parameter._shard_param_infos  # noqa: SLF001
        for own, shape, info in zip(*every, strict=True):
            start = info.intra_param_start_idx or 0
            stop = start + (info.numel_in_shard or 0)
            mark_range(own, Range(shape, start, stop, flat.process_group))
    return flat


def _gather(unit: nn.Module) -> None:
    """Put whole parameters in the place of shards; those of inner units are shards no more."""
    wholes: dict[nn.Parameter, nn.Parameter] = {}
    for module in unit.modules():
        for name, held in list(module.named_parameters(recurse=False)):
            if not isinstance(held, DTensor):
                continue
            if held not in wholes:
                whole = held.detach().full_tensor()
                wholes[held] = nn.Parameter(whole, requires_grad=held.requires_grad)
            module.register_parameter(name, wholes[held])
