"""The device mesh: which rank has which part in which axis."""

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from brimful.strategy import Strategy

REPLICATE, SHARD = "dp_replicate", "dp_shard"


def build_mesh(strategy: Strategy, device_type: str) -> DeviceMesh:
    """Make the mesh of a strategy, ranks of the shard axis next to each other.

    Args:
        strategy: Says the degrees; an axis of one device is left out, the shard axis never.
        device_type: ``cpu``, ``cuda`` or the pretend ``gpu``.
    """
    shape, names = (strategy.dp_shard,), (SHARD,)
    if strategy.dp_replicate > 1:
        shape, names = (strategy.dp_replicate, *shape), (REPLICATE, *names)
    return init_device_mesh(device_type, shape, mesh_dim_names=names)
