"""The device mesh: which rank has which part in which axis."""

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from brimful.strategy import Strategy

REPLICATE, SHARD = "dp_replicate", "dp_shard"


def build_mesh(strategy: Strategy, device_type: str) -> DeviceMesh:
    """Make the mesh of a strategy, ranks of the shard axis next to each other.

    Args:
        strategy: Says the degrees; an axis of one device is left out.
        device_type: ``cpu``, ``cuda`` or the pretend ``gpu``.
    """
    degrees = {REPLICATE: strategy.dp_replicate, SHARD: strategy.dp_shard}
    axes = {name: degree for name, degree in degrees.items() if degree > 1}
    return init_device_mesh(device_type, tuple(axes.values()), mesh_dim_names=tuple(axes))
