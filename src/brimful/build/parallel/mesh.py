"""The device mesh: which rank has which part in which axis."""

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from brimful.build.parallel.alone import join_alone
from brimful.values.strategy import Strategy, gathers_alone

PIPELINE, REPLICATE, SHARD, TENSOR = "pp", "dp_replicate", "dp_shard", "tp"
EXPERTS, SAME_EXPERTS = "ep", "same_experts"
"""Axes of ``experts_mesh``: devices with different experts, and those that share the same ones."""


def build_mesh(strategy: Strategy, device_type: str) -> DeviceMesh | None:
    """Make the mesh of a strategy; None for one device, unless FSDP2 runs there.

    Ranks that tell each other the most stand next to each other: those of ``tp``, then those that
    share a copy. Those of ``pp`` tell each other the least.

    ``strategy``: says the degrees; an axis of one device is left out. ``device_type``: ``cpu``,
    ``cuda`` or the pretend ``gpu``.
    """
    degrees = {
        PIPELINE: strategy.pp,
        REPLICATE: strategy.dp_replicate,
        SHARD: strategy.dp_shard,
        TENSOR: strategy.tp,
    }
    axes = {name: degree for name, degree in degrees.items() if degree > 1}
    if gathers_alone(strategy):
        join_alone(device_type)
        axes = {SHARD: 1}
    if not axes:
        return None
    return init_device_mesh(device_type, tuple(axes.values()), mesh_dim_names=tuple(axes))


def data_mesh(mesh: DeviceMesh | None) -> DeviceMesh | None:
    """Return the part of a mesh whose devices see different samples; None: all see the same."""
    if mesh is None:
        return None
    names = mesh.mesh_dim_names or ()
    axes = tuple(name for name in names if name in {REPLICATE, SHARD})
    if axes == names:
        return mesh
    return mesh[axes] if axes else None


def experts_mesh(strategy: Strategy, device_type: str) -> DeviceMesh:
    """Lay the same devices out anew for experts: those of ``dp_shard x tp`` part them among them.

    Ranks of one group of ``ep`` stand next to each other. Axes, also those of one device: ``pp``,
    ``dp_replicate``, ``same_experts`` = dp_shard x tp / ep, ``ep``.

    ``strategy``: says the degrees; ``ep`` more than 1. ``device_type``: as for ``build_mesh``.
    """
    same = strategy.dp_shard * strategy.tp // strategy.ep
    sizes = (strategy.pp, strategy.dp_replicate, same, strategy.ep)
    names = (PIPELINE, REPLICATE, SAME_EXPERTS, EXPERTS)
    return init_device_mesh(device_type, sizes, mesh_dim_names=names)
