"""A device's piece of parameters that a group of devices shares, and computing with it.

What is held is a DTensor, so that it is drawn, read, saved and sharded again by what knows
DTensors; what computes is a plain tensor. Must not know which layer is cut how.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import ParallelStyle

from brimful.build.own import leaf_of
from brimful.build.parallel.collectives import with_summed_gradient

Forward = Callable[..., Any]
Pieces = dict[nn.Parameter, nn.Parameter]
"""Pieces of parameters that were cut, by what they were cut from: tied ones are cut once."""
Own = dict[str, torch.Tensor]
_CUT, _HELD = "brimful_cut", "brimful_held"
"""Attributes of a layer: how it is cut, and its pieces while a module around it holds them."""


class Cut(ParallelStyle):  # type: ignore[misc]  # torch is untyped to mypy
    """A layer whose parameters are cut, or are whole on every device."""

    def __init__(self, pieces: Pieces) -> None:
        """Keep what was cut already."""
        super().__init__()
        self._pieces = pieces

    def cut(self, module: nn.Module, mesh: DeviceMesh, **placements: Placement) -> None:
        """Cut parameters by name; those that are not named are whole on every device."""
        cut_parameters(module, mesh, self._pieces, **placements)


def cut_parameters(
    module: nn.Module, mesh: DeviceMesh, pieces: Pieces, **placements: Placement
) -> None:
    """Cut a module's own parameters by name, in place.

    ``pieces``: what was cut already; it is added to. ``placements``: those that are not named are
    whole on every device.
    """
    for name, whole in list(module.named_parameters(recurse=False)):
        if whole not in pieces:
            pieces[whole] = piece_of(whole, mesh, placements.get(name, Replicate()))
        module.register_parameter(name, pieces[whole])


def piece_of(whole: nn.Parameter, mesh: DeviceMesh, placement: Placement) -> nn.Parameter:
    """Return this device's piece of a parameter on ``meta``, as a DTensor."""
    shape = list(whole.shape)
    if isinstance(placement, Shard):
        shape[placement.dim] = own_range(shape[placement.dim], mesh)[1]
    local = torch.empty(shape, dtype=whole.dtype, device="meta")
    piece = DTensor.from_local(
        local, mesh, [placement], run_check=False, shape=whole.shape, stride=whole.stride()
    )
    return nn.Parameter(piece, requires_grad=whole.requires_grad)


def own_range(num: int, mesh: DeviceMesh) -> tuple[int, int]:
    """Return where this device's part of a dimension begins and how long it is; see ``Shard``."""
    size = -(-num // mesh.size())
    start = min(num, mesh.get_local_rank() * size)
    return start, min(size, num - start)


def on_own_pieces(module: nn.Module, group: ProcessGroup) -> nn.Module:
    """Let a layer's forward compute with this device's pieces of its parameters."""
    inner: Forward = module.forward
    mark_cut(module, group)

    @wraps(inner)
    def forward(*args: Any) -> Any:
        with own_pieces(module):
            return inner(*args)

    module.forward = forward
    return module


class _Cut(NamedTuple):
    """How a layer is cut: among whom, and what of it is taken out while it computes."""

    group: ProcessGroup
    apart: tuple[str, ...]


def mark_cut(module: nn.Module, group: ProcessGroup, *apart: str) -> None:
    """Note on a layer that its parameters are pieces.

    ``apart``: those that its own forward is not to see.
    """
    setattr(module, _CUT, _Cut(group, apart))


@contextlib.contextmanager
def own_pieces(module: nn.Module) -> Iterator[Own]:
    """Let a layer's parameters be plain tensors inside the block: this device's pieces."""
    held = getattr(module, _HELD, None)
    if held is not None:
        yield held
        return
    group, apart = getattr(module, _CUT)
    parameters = dict(module._parameters)  # noqa: SLF001 - FSDP2 swaps them in the same place
    own = {name: _own(p, group) for name, p in parameters.items() if p is not None}
    module._parameters.update(own | dict.fromkeys(apart))  # noqa: SLF001
    try:
        yield own
    finally:
        module._parameters.update(parameters)  # noqa: SLF001


@contextlib.contextmanager
def holding_pieces(whole: nn.Module) -> Iterator[None]:
    """Let parameters of all layers of a module be this device's pieces inside the block.

    A compiler's graph of it begins with plain tensors, and changes no module. What FSDP2 gathers by
    itself, as it does experts, is not there yet.
    """
    with contextlib.ExitStack() as stack:
        cut = [m for m in whole.modules() if hasattr(m, _CUT) and not isinstance(m, FSDPModule)]
        for module in cut:
            setattr(module, _HELD, stack.enter_context(own_pieces(module)))
        try:
            yield
        finally:
            for module in cut:
                delattr(module, _HELD)


def _own(parameter: Any, group: ProcessGroup) -> torch.Tensor:
    """Return this device's piece; of what is whole, with the gradient of all devices' tokens."""
    leaf = leaf_of(parameter)
    local: torch.Tensor = leaf.to_local() if isinstance(leaf, DTensor) else leaf
    return local if parameter.placements[-1].is_shard() else with_summed_gradient(local, group)
