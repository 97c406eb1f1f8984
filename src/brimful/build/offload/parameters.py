"""Blocks whose parameters are kept on the host and are on the device while their block runs.

The model's parameters are tensors of the host. Before a block runs they are copied to the device
and the copies stand in their places; the next block's are on their way meanwhile, and in the
backward pass those of the block before. What autograd saves of a copy is a reference by which it
is copied again. Gradients go to the host a block at a time; or stay, where the copies are updated
at once and brought home (``early_update``); a frozen base has none.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode_temporarily
from torch.utils.checkpoint import _CachedTorchDispatchMode, _CachingTorchDispatchMode

from brimful.build.offload.host import take_like
from brimful.build.offload.lane import Lane
from brimful.build.phases import in_backward
from brimful.values.results import PARAMETERS

AWAY = "brimful_away"
"""Attribute of a parameter that is kept on the host."""
Deliver = Callable[[torch.Tensor, torch.Tensor], None]
"""Takes a parameter of the host and its gradient on the device."""


class Due(NamedTuple):
    """A parameter of the host that is to be updated, its copy on the device, its gradient there."""

    home: torch.Tensor
    copy: torch.Tensor
    gradient: torch.Tensor


Update = Callable[[Sequence[Due]], None]
"""Takes a block's parameters."""


class Slot(NamedTuple):
    """A place in a module where a parameter is looked up."""

    module: Any
    name: str
    home: nn.Parameter


class _Copies(NamedTuple):
    """A block's parameters on the device, and what to wait for before they are read."""

    tensors: list[torch.Tensor]
    events: list[Any]


class AwayBlocks:
    """The blocks whose parameters are away, in the order in which they run."""

    def __init__(self, blocks: Sequence[nn.Module], device: torch.device) -> None:
        """Take the blocks.

        ``blocks``: with parameters on the host, which are marked (``at_home``).
        """
        self._slots = [_slots_of(block) for block in blocks]
        self._device = device
        self._lane = Lane(device)
        self._here: dict[int, _Copies] = {}
        self.deliver: Deliver = _nobody
        self.update: Update | None = None

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What is kept on the host."""
        return [slot.home for slots in self._slots for slot in slots]

    @contextlib.contextmanager
    def present(self, block: int) -> Iterator[list[torch.Tensor]]:
        """Have copies in the places of a block's parameters inside the block."""
        slots = self._slots[block]
        with _uncounted():
            copies = self.copies(block)
        way = _Way(self, block, copies if self._outlasts() else None)
        connected = _Connect.apply(way, copies, *(slot.home for slot in slots))
        for slot, copy in zip(slots, connected, strict=True):
            slot.module._parameters[slot.name] = copy  # noqa: SLF001
        try:
            yield copies
        finally:
            for slot in slots:
                slot.module._parameters[slot.name] = slot.home  # noqa: SLF001
            self._here.pop(block, None)

    def copies(self, block: int) -> list[torch.Tensor]:
        """Return a block's copies, ready to be read, and begin with those needed next."""
        following = block - 1 if in_backward() else block + 1
        for other in [b for b in self._here if b not in {block, following}]:
            del self._here[other]
        self._bring(block)
        copies = self._here[block]
        for event in copies.events:
            self._lane.wait(event)
        copies.events.clear()
        self._bring(following)
        return copies.tensors

    def receive(self, way: "_Way", gradients: Sequence[torch.Tensor | None]) -> None:
        """Hand on the gradients of a block, whose backward pass is over."""
        trained = [
            (place, slot.home, gradient)
            for place, (slot, gradient) in enumerate(
                zip(self._slots[way.block], gradients, strict=True)
            )
            if gradient is not None and slot.home.requires_grad
        ]
        if self.update is None:
            for _, home, gradient in trained:
                self.deliver(home, gradient)
            return
        copies = self.copies(way.block) if way.copies is None else way.copies
        self.update([Due(home, copies[place], gradient) for place, home, gradient in trained])

    def _outlasts(self) -> bool:
        """Whether copies are kept until the block's gradients are there.

        Those of a block that is computed again are dropped one by one as its backward pass goes on;
        what is to be updated would have to be brought once more. Kept in the forward pass they
        would be there for all of it.
        """
        trains = any(home.requires_grad for home in self.parameters)
        return trains and self.update is not None and in_backward()

    def forget(self) -> None:
        """Drop what is still on the device: a forward and a backward pass are over."""
        self._here.clear()

    def _bring(self, block: int) -> None:
        if block in self._here or not 0 <= block < len(self._slots):
            return
        homes = [slot.home.detach() for slot in self._slots[block]]
        tensors = [torch.empty_like(home, device=self._device) for home in homes]
        events = [self._lane.copy(t, home) for t, home in zip(tensors, homes, strict=True)]
        self._here[block] = _Copies(tensors, events)


def _slots_of(block: nn.Module) -> list[Slot]:
    return [
        Slot(module, name, parameter)
        for module in block.modules()
        for name, parameter in module._parameters.items()  # noqa: SLF001
        if parameter is not None and is_away(parameter)
    ]


def is_away(parameter: torch.Tensor) -> bool:
    """Whether a parameter is kept on the host, or will be as soon as it has memory."""
    return bool(getattr(parameter, AWAY, False))


def at_home(like: torch.Tensor, device: torch.device) -> nn.Parameter:
    """Return a parameter in memory of the host, empty and marked.

    ``like``: of its shape and type, and whether it trains.
    """
    memory = take_like(PARAMETERS, like.detach(), device)
    home = nn.Parameter(memory, requires_grad=like.requires_grad)
    setattr(home, AWAY, True)
    return home


class _Way(NamedTuple):
    """Where gradients of a block's copies go; the copies, where they are kept for them."""

    away: AwayBlocks
    block: int
    copies: list[torch.Tensor] | None


class _Connect(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped to mypy
    """The copies as functions of the homes: the gradient of a copy is its home's."""

    @staticmethod
    def forward(ctx: Any, way: _Way, copies: list[torch.Tensor], *homes: nn.Parameter) -> Any:
        ctx.way = way
        ctx.set_materialize_grads(False)
        frozen = [c for c, home in zip(copies, homes, strict=True) if not home.requires_grad]
        ctx.mark_non_differentiable(*frozen)
        return tuple(copy.detach() for copy in copies)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        ctx.way.away.receive(ctx.way, gradients)
        return (None, None, *(None for _ in gradients))


@contextlib.contextmanager
def _uncounted() -> Iterator[None]:
    """Leave the selective checkpoint that runs, if one does, inside the block.

    It counts operations (torch 2.13), and what is copied here and what is on its way already
    differs between a forward pass and the same one computed again.
    """
    mode = _get_current_dispatch_mode()
    if isinstance(mode, _CachingTorchDispatchMode | _CachedTorchDispatchMode):
        with _pop_mode_temporarily():
            yield
    else:
        yield


def _nobody(_home: torch.Tensor, _gradient: torch.Tensor) -> None:
    raise AssertionError("nobody takes gradients of parameters that are away")
