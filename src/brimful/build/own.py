"""This process's piece of a tensor that is sharded, whatever the axes."""

from math import prod
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

Region = tuple[slice, ...]
_RANGE, _LEAF = "_brimful_range", "_brimful_leaf"


class Range(NamedTuple):
    """Which of a parameter's numbers this process has, where it has neither all nor whole rows.

    Attributes:
        shape: Of all.
        start: The first that it has, in the order in which they lie.
        stop: The one behind the last.
        group: The processes that share it.
    """

    shape: torch.Size
    start: int
    stop: int
    group: Any

    def whole(self, own: torch.Tensor) -> torch.Tensor:
        """Return all numbers, or all of what is kept beside them; all of the group call this."""
        found = own.new_zeros(prod(self.shape))
        found[self.start : self.stop] = own
        # Of each byte one process has some and the others 0: a sum of numbers would lose -0.0.
        dist.all_reduce(found.view(torch.uint8), group=self.group)
        return found.view(self.shape)

    def own(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this process's numbers of all."""
        return whole.reshape(-1)[self.start : self.stop]


def own_leaf(parameter: DTensor) -> torch.nn.Parameter:
    """Return this process's piece of a parameter as a plain one, which computes from now on.

    Both are the same memory. DDP reduces the gradients of plain parameters.
    """
    leaf = torch.nn.Parameter(own_memory(parameter.detach()))
    setattr(parameter, _LEAF, leaf)
    return leaf


def leaf_of(parameter: torch.Tensor) -> torch.Tensor:
    """Return what a gradient comes to: a piece that is a parameter, or the parameter itself."""
    leaf: torch.Tensor = getattr(parameter, _LEAF, parameter)
    return leaf


def mark_range(parameter: torch.Tensor, which: Range) -> None:
    """Say which numbers a parameter is from now on."""
    setattr(parameter, _RANGE, which)


def range_of(tensor: torch.Tensor) -> Range | None:
    """Return which numbers a parameter is; None: all, or whole rows of a DTensor."""
    found: Range | None = getattr(tensor, _RANGE, None)
    return found


def ranged_as(tensor: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """Return memory as the range of numbers that another tensor is, if that is one."""
    if (found := range_of(tensor)) is not None:
        mark_range(memory, found)
    return memory


def region_of(tensor: torch.Tensor) -> Region:
    """Return which part of the whole this process holds, a slice per dimension."""
    if not isinstance(tensor, DTensor):
        return tuple(slice(0, n) for n in tensor.shape)
    mesh, placements = tensor.device_mesh, tensor.placements
    where = mesh.get_coordinate()
    if where is None or not all(type(each) in {Replicate, Shard} for each in placements):
        shape, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
        return tuple(slice(start, start + n) for start, n in zip(offset, shape, strict=True))
    region = [slice(0, n) for n in tensor.shape]
    for placement, number, count in zip(placements, where, mesh.shape, strict=True):
        if isinstance(placement, Shard):  # as chunk cuts; torch makes a number of each row for it
            held = region[placement.dim]
            rows = -(-(held.stop - held.start) // count)
            start = held.start + number * rows
            end = tensor.shape[placement.dim]  # where what is empty is
            is_empty = start >= held.stop
            region[placement.dim] = (
                slice(end, end) if is_empty else slice(start, min(start + rows, held.stop))
            )
    return tuple(region)


def own_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of this process's part of a tensor; the tensor itself if it is plain."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def sharded_as(tensor: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """Return memory of any device as a tensor that is sharded as another; itself if that is plain.

    ``DTensor.from_local`` would move the memory to the device of the mesh.
    """
    if not isinstance(tensor, DTensor):
        return ranged_as(tensor, memory)
    return DTensor(memory, tensor._spec, requires_grad=False)  # noqa: SLF001


def share_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the shape of the largest part that a process has of a tensor: the first one's."""
    shape = list(tensor.shape)
    for dim, size in _cuts(tensor):
        shape[dim] = -(-shape[dim] // size)
    return tuple(shape)


def num_pieces(tensor: torch.Tensor) -> int:
    """Return in how many pieces a tensor lies, copies of one counted once."""
    return prod(size for _, size in _cuts(tensor))


def piecewise(
    tensor: torch.Tensor, size: tuple[int, ...], *, dtype: torch.dtype, device: torch.device | str
) -> torch.Tensor:
    """Return zeros of which there are as many for every piece of a tensor, where that piece is."""
    # Made of the tensor, so that the pretend GPU knows whose they are.
    memory = own_memory(tensor.detach()).new_zeros(size, dtype=dtype, device=device)
    if not isinstance(tensor, DTensor):
        return memory
    placements = [Replicate() if each.is_replicate() else Shard(0) for each in tensor.placements]
    every = torch.Size((size[0] * num_pieces(tensor), *size[1:]))
    return DTensor.from_local(
        memory, tensor.device_mesh, placements, run_check=False, shape=every, stride=memory.stride()
    )


def _cuts(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """List along which dimension a tensor is cut, and in how many pieces, an axis at a time."""
    if not isinstance(tensor, DTensor):
        return []
    axes = zip(tensor.placements, tensor.device_mesh.shape, strict=True)
    return [(each.dim, size) for each, size in axes if not each.is_replicate()]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in full, without its graph; where it is sharded all processes call this."""
    if (found := range_of(tensor)) is not None:
        return found.whole(tensor.detach())
    return tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor.detach()


def keep_own(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Copy this process's part of a whole tensor into its place.

    ``values``: of the same global shape, on any device, of any type.
    """
    own_memory(tensor).copy_(values[region_of(tensor)])
