"""This process's piece of a tensor that is sharded, whatever the axes."""

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

Region = tuple[slice, ...]


def region_of(tensor: torch.Tensor) -> Region:
    """Return which part of the whole this process holds, a slice per dimension."""
    shape, offset = tensor.shape, (0,) * tensor.ndim
    if isinstance(tensor, DTensor):
        shape, offset = compute_local_shape_and_global_offset(
            tensor.shape, tensor.device_mesh, tensor.placements
        )
    return tuple(slice(start, start + n) for start, n in zip(offset, shape, strict=True))


def own_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of this process's part of a tensor; the tensor itself if it is plain."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def sharded_as(tensor: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """Return memory of any device as a tensor that is sharded as another; itself if that is plain.

    ``DTensor.from_local`` would move the memory to the device of the mesh.

    Args:
        tensor: Says how.
        memory: Of the shape of its shard.
    """
    if not isinstance(tensor, DTensor):
        return memory
    return DTensor(memory, tensor._spec, requires_grad=False)  # noqa: SLF001


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in full, gathered where it is sharded: then all processes must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def keep_own(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Copy this process's part of a whole tensor into its place.

    Args:
        tensor: Sharded, replicated or plain.
        values: Of the same global shape, on any device, of any type.
    """
    own_memory(tensor).copy_(values[region_of(tensor)])
