"""What blocks keep for their backward pass, in host memory between the two.

What autograd saves inside a block is copied to the host, each memory once; it is let go of on the
device when the block behind has run, by when the copy is done. In backward all that a block needs
is brought at once, and what the block before it needs is on its way meanwhile. What the last block
keeps stays where it is: it is needed first.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from brimful.build.offload.host import take
from brimful.build.offload.lane import Lane
from brimful.values.results import SAVED_ACTIVATIONS as ACTIVATIONS

LEAST_BYTES = 4096
"""Smaller tensors that do not grow with the text stay: a copy costs more than they are worth. What
grows with it is sent however short it is, so that no length changes what is."""


class View(NamedTuple):
    """Which part of a memory a tensor is."""

    shape: torch.Size
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "View":
        """Describe a tensor."""
        return cls(tensor.shape, tensor.stride(), tensor.storage_offset())

    def on(self, memory: torch.Tensor) -> torch.Tensor:
        """Return that part of another memory of the same type."""
        return memory.as_strided(self.shape, self.stride, self.offset)


@dataclass(eq=False)
class _Parcel:
    """A memory that is away: on the device until it is copied, on the host, or brought back."""

    host: torch.Tensor
    device: torch.Tensor | None
    event: Any
    num_uses: int = 0


class Ref(NamedTuple):
    """What stands in the graph for a tensor that is away."""

    flight: "Flight"
    parcel: _Parcel
    view: View

    def tensor(self) -> torch.Tensor:
        """Return the tensor, on the device again."""
        return self.flight.unpack(self.parcel, self.view)


@dataclass(eq=False)
class Flight:
    """All that one block keeps of one forward pass; ``before`` is that of the block before it."""

    lane: Lane
    back: Lane
    before: "Flight | None"
    parcels: dict[tuple[int, torch.dtype], _Parcel] = field(default_factory=dict)
    is_landed: bool = False
    is_back: bool = False

    def pack(self, tensor: torch.Tensor) -> Ref:
        """Send a tensor to the host, with all of the memory that it is a part of."""
        key = memory_of(tensor), tensor.dtype
        if key not in self.parcels:
            self.parcels[key] = self._send(tensor.detach())
        parcel = self.parcels[key]
        parcel.num_uses += 1
        return Ref(self, parcel, View.of(tensor))

    def _send(self, tensor: torch.Tensor) -> _Parcel:
        num = tensor.untyped_storage().nbytes() // tensor.element_size()
        whole = tensor.as_strided((num,), (1,), 0)
        host = take(ACTIVATIONS, (num,), tensor.dtype, tensor.device)
        return _Parcel(host, whole, self.lane.copy(host, whole))

    def land(self) -> None:
        """Let go of what was copied; the device waits for the copies first."""
        if self.is_landed:
            return
        self.is_landed = True
        for parcel in self.parcels.values():
            self.lane.wait(parcel.event)
            parcel.device = None

    def bring(self) -> None:
        """Begin to copy everything back."""
        if self.is_back:
            return
        self.land()
        self.is_back = True
        for parcel in self.parcels.values():
            self._bring(parcel)
        self.parcels.clear()

    def _bring(self, parcel: _Parcel) -> torch.Tensor:
        parcel.device = torch.empty_like(parcel.host, device=self.lane.device)
        parcel.event = self.back.copy(parcel.device, parcel.host)
        return parcel.device

    def unpack(self, parcel: _Parcel, view: View) -> torch.Tensor:
        """Return a tensor on the device, and begin with what the block before needs.

        What is asked for more often than it was saved is brought once more.
        """
        self.bring()
        if self.before is not None:
            self.before.bring()
            self.before = None
        memory = self._bring(parcel) if parcel.device is None else parcel.device
        self.back.wait(parcel.event)
        parcel.num_uses -= 1
        if parcel.num_uses <= 0:
            parcel.device = None
        return view.on(memory)


class AwayActivations:
    """The flights of a forward pass, in the order in which blocks run."""

    def __init__(self, device: torch.device) -> None:
        """Make the lanes."""
        self._down, self._up = Lane(device), Lane(device)
        self._latest: Flight | None = None

    def depart(self, block: int) -> Flight:
        """Begin with what a block keeps; block 0 begins a forward pass."""
        before = self._latest if block else None
        self._latest = Flight(self._down, self._up, before)
        return self._latest

    def arrive(self, flight: Flight | None) -> None:
        """Take note that a block has run: what the one before it kept is let go of."""
        if flight is not None and flight.before is not None:
            flight.before.land()

    def past(self) -> None:
        """Take note that the first block has run that keeps what it keeps on the device."""
        if self._latest is not None:
            self._latest.land()
            self._latest = None


def memory_of(tensor: torch.Tensor) -> int:
    """Name the memory of a tensor; unlike ``data_ptr`` this is known of pretend ones too."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001


def stays(tensor: torch.Tensor, kept: Collection[int], num_tokens: int) -> bool:
    """Whether a saved tensor is left where it is: small, or held by others too.

    ``kept``: memories of parameters, buffers, and what all blocks are given alike. ``num_tokens``:
    of the micro-batch: what has as many numbers for each grows with it.
    """
    if memory_of(tensor) in kept:
        return True
    num_bytes = int(tensor.untyped_storage().nbytes())
    return num_bytes < LEAST_BYTES and num_bytes // tensor.element_size() % num_tokens > 0
