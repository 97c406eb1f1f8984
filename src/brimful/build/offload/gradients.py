"""Gradients on their way to the host, while the backward pass goes on.

A gradient is copied as soon as it is whole, and its memory on the device is free again when the
copy is done: of all gradients the device has two at a time. Those of later micro-batches are added
up on the host.
"""

from collections import deque
from typing import Any, NamedTuple

import torch

from brimful.build.offload.host import on_host, take_like
from brimful.build.offload.lane import Lane
from brimful.build.own import own_memory
from brimful.values.results import GRADIENTS

STAGING = "staging"
NUM_ON_THE_WAY = 2
"""Gradients that the device still has while the next one is computed."""


class _Sent(NamedTuple):
    """A gradient that is being copied: what to wait for, and what is added to what behind it."""

    event: Any
    gradient: torch.Tensor
    home: torch.Tensor
    added: torch.Tensor | None


class HostGradients:
    """Takes gradients from the device and keeps them as ``grad`` of tensors on the host."""

    def __init__(self, device: torch.device) -> None:
        """Begin with none."""
        self._device = device
        self._lane = Lane(device)
        self._room: dict[torch.Tensor, torch.Tensor] = {}
        self._sent: deque[_Sent] = deque()

    def make_room(self, home: torch.Tensor) -> None:
        """Take memory for the gradient of a tensor on the host, before the first step."""
        self._room[home] = take_like(GRADIENTS, home.detach(), self._device)

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
    def take(self, home: torch.Tensor, gradient: torch.Tensor) -> None:
        """Take one gradient; the caller lets go of it.

        ``home``: what it is the gradient of, on the host.
        """
        is_first = home.grad is None
        if is_first:
            home.grad = self._room[home]
        target = home.grad if is_first else take_like(STAGING, home.grad, self._device)
        event = self._lane.copy(target, gradient)
        self._sent.append(_Sent(event, gradient, home.grad, None if is_first else target))
        while len(self._sent) > NUM_ON_THE_WAY:
            self._arrive(self._sent.popleft())

    def collect(self) -> None:
        """Wait until all are there."""
        while self._sent:
            sent = self._sent.popleft()
            self._lane.finish(sent.event)
            self._arrive(sent)

    def _arrive(self, sent: _Sent) -> None:
        self._lane.wait(sent.event)
        if sent.added is not None:
            self._lane.finish(sent.event)
            with on_host(STAGING):
                own_memory(sent.home).add_(own_memory(sent.added))
