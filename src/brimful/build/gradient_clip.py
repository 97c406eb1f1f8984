"""The global gradient norm and the clip, in fp32 whatever the gradients are held in.

Torch's own norm is of the gradients' type, so that one of bf16 gradients has three digits: the
clip scales by a factor that is up to 0.4 % off and a log shows a staircase. Nor does it take
gradients that are sharded over different axes, or some of which are not sharded at all: here each
device adds up the squares of its own pieces, and devices add up what they do not hold alike.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from brimful.build.own import own_memory, range_of

PIECE, HOST_PIECE = 2**16, 2**24
"""Elements that are summed at a time on a CPU, whose kernel widens what it is given into a copy:
256 KiB, where whole gradients would take as much as the largest of them twice. CUDA's widens each
number as it reads it. On the host of a device there is room for 64 MiB, and far more to sum."""
_NEAR_ZERO = 1e-6
"""As in ``torch.nn.utils.clip_grad_norm_``: a norm of zero divides nothing."""


class Row(NamedTuple):
    """A pipeline, each of whose devices has parameters of its own.

    Attributes:
        group: The devices.
        repeated: Parameters of this device that another one has and counts too: tied ones.
    """

    group: Any
    repeated: frozenset[torch.Tensor]


Axes = tuple[Any, ...]
"""Process groups over which a gradient is sharded; empty where every device holds all of it."""


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def clip_gradients(
    parameters: Iterable[torch.Tensor],
    max_norm: float,
    *,
    row: Row | None = None,
    piece: int = PIECE,
) -> torch.Tensor:
    """Scale the gradients in place so that their global norm is at most ``max_norm``.

    ``parameters``: all that train, sharded over any axes or plain; of many devices all call this.
    ``max_norm``: the bound; 0 only measures. ``piece``: elements that are summed at a time on a
    CPU. Returns the norm before scaling, a plain fp32 scalar on the device, the same on every
    device.
    """
    trained = list(parameters)
    gradients = [p.grad for p in trained if p.grad is not None]
    is_spread = any(isinstance(g, DTensor) for g in gradients) or any(map(range_of, trained))
    if row is None and not is_spread:
        bound = max_norm if max_norm > 0 else float("inf")
        if all(g.dtype == torch.float32 for g in gradients):
            return torch.nn.utils.clip_grad_norm_(trained, bound)
        norm = gradient_norm(trained, piece=piece)
        if max_norm > 0:
            torch.nn.utils.clip_grads_with_norm_(trained, bound, norm)
        return norm
    norm = gradient_norm(trained, row=row, piece=piece)
    if max_norm > 0:
        factor = clip_factor(norm, max_norm)
        torch._foreach_mul_([own_memory(g) for g in gradients], factor)
    return norm


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def gradient_norm(
    parameters: Iterable[torch.Tensor], *, row: Row | None = None, piece: int = PIECE
) -> torch.Tensor:
    """Return the global norm of the gradients as they are, a plain fp32 scalar on the device.

    ``parameters``: as for ``clip_gradients``.
    """
    if row is None:
        return _device_norm(parameters, piece)
    squared = _device_norm((p for p in parameters if p not in row.repeated), piece).square()
    dist.all_reduce(squared, group=row.group)
    return squared.sqrt()


def _device_norm(parameters: Iterable[torch.Tensor], piece: int) -> torch.Tensor:
    by_axes: dict[Axes, list[torch.Tensor]] = {}
    meshes: dict[DeviceMesh, DeviceMesh] = {}
    trained = list(parameters)
    if ranges := [each for each in map(range_of, trained) if each is not None]:
        # The norm where each process has a range of the numbers, or none of a parameter.
        group = ranges[0].group
        own = [parameter.grad for parameter in trained if parameter.grad is not None]
        norm = _own_norm(own, piece) if own else torch.zeros((), device=trained[0].device)
        return _joined({(group,): norm}, norm.device.type)
    for parameter in trained:
        if parameter.grad is not None:
            by_axes.setdefault(_axes(parameter.grad, meshes), []).append(own_memory(parameter.grad))
    if not by_axes:
        return torch.tensor(0.0)
    norms = {axes: _own_norm(own, piece) for axes, own in by_axes.items()}
    if norms.keys() == {()}:
        return norms[()]
    return _joined(norms, next(iter(meshes)).device_type)


def _axes(gradient: torch.Tensor, meshes: dict[DeviceMesh, DeviceMesh]) -> Axes:
    """Return over which process groups a gradient's squares are to be added up.

    ``meshes``: those seen before. Of equal ones the first counts: torch remembers what it computed
    for a mesh, so that a tensor may have an older one of the same devices.
    """
    if not isinstance(gradient, DTensor):
        return ()
    assert not any(p.is_partial() for p in gradient.placements), "a gradient that was not reduced"
    mesh = meshes.setdefault(gradient.device_mesh, gradient.device_mesh)
    placed = enumerate(gradient.placements)
    return tuple(mesh.get_group(axis) for axis, p in placed if not p.is_replicate())


def _own_norm(gradients: list[torch.Tensor], piece: int) -> torch.Tensor:
    pieces = [part for gradient in gradients for part in _pieces(gradient, piece)]
    norms = torch._foreach_norm(pieces, 2.0, torch.float32)  # noqa: SLF001 - as torch's clip does
    return torch.linalg.vector_norm(torch.stack(norms))


def _joined(norms: dict[Axes, torch.Tensor], device_type: str) -> torch.Tensor:
    """Add up squares over the devices of each axis, those of all gradients sharded over it.

    Devices add them up among themselves, also those of gradients that are on the host, where the
    sum goes back to.
    """
    squares = torch.stack(list(norms.values())).square()
    kept_on = squares.device
    squares = squares.to(device_type)
    for axis in dict.fromkeys(axis for axes in norms for axis in axes):
        whose = [number for number, axes in enumerate(norms) if axis in axes]
        sums = torch.stack([squares[number] for number in whose])
        dist.all_reduce(sums, group=axis)
        for number, total in zip(whose, sums.unbind(), strict=True):
            squares[number] = total
    return squares.sum().sqrt().to(kept_on)


def clip_factor(norm: torch.Tensor, max_norm: float) -> torch.Tensor:
    """Return what gradients of this norm are multiplied by, at most 1, on the norm's device.

    ``max_norm``: the bound; 0 leaves gradients alone.
    """
    if max_norm <= 0:
        return torch.ones_like(norm)
    return (max_norm / (norm + _NEAR_ZERO)).clamp_(max=1.0)


def _pieces(gradient: torch.Tensor, piece: int) -> Iterator[torch.Tensor]:
    if gradient.device.type == "cpu" and gradient.dtype != torch.float32:
        yield from gradient.flatten().split(piece)
    else:
        yield gradient
