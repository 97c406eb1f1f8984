"""The optimizer's state and its update in host memory.

Every parameter that trains has a copy on the host; the job's own update rule updates the copies
there, from gradients that were brought while the backward pass ran, and what came out is copied
back. The arithmetic is the rule's, so that a step is the plain one but for how the host rounds. As
ZeRO-Offload (Ren et al. 2021, arXiv:2101.06840): of several devices that shard a model each has its
shards on its host, and FSDP2 calls a shard's hook when its gradient is reduced.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from brimful.build.offload.gradients import HostGradients
from brimful.build.offload.host import on_host, take_like
from brimful.build.offload.lane import Lane
from brimful.build.own import own_memory
from brimful.values.results import OPTIMIZER_STATE, PARAMETERS

Group = dict[str, Any]
Make = Callable[[list[Group]], torch.optim.Optimizer]
"""Makes the optimizer that updates what is on the host."""


class HostOptimizer(torch.optim.Optimizer):  # type: ignore[misc]  # torch is untyped to mypy
    """Updates parameters of a device by way of the host.

    ``param_groups`` and ``state`` are under the model's own parameters; ``inner`` updates
    ``homes``, and its state of a home is that of the parameter.

    Attributes:
        inner: The optimizer of what is on the host.
        homes: By parameter: its copy on the host, or itself where that is where it is kept.
        holds: Whether gradients stay on the device for now: there are more micro-batches.
    """

    def __init__(
        self,
        groups: list[Group],
        *,
        make: Make,
        device: torch.device,
        away: Iterable[torch.Tensor] = (),
    ) -> None:
        """Copy the parameters to the host and wait for their gradients.

        ``groups``: as torch's optimizers take them, each with its ``lr``. ``make``: makes ``inner``
        from groups of homes. ``away``: those that are kept on the host; who computes with them
        brings their gradients.
        """
        super().__init__(groups, defaults={})
        self.holds = False
        self.gradients = HostGradients(device)
        self._lane = Lane(device)
        self._device, kept = device, set(away)
        self.homes = {
            parameter: parameter if parameter in kept else self._copy_of(parameter)
            for group in self.param_groups
            for parameter in group["params"]
        }
        self._resident = [(p, home) for p, home in self.homes.items() if home is not p]
        for home in self.homes.values():
            self.gradients.make_room(home)
        for parameter, _ in self._resident:
            parameter.register_post_accumulate_grad_hook(self._send)
        self.inner = make(
            [
                {**group, "params": [self.homes[p] for p in group["params"]]}
                for group in self.param_groups
            ]
        )
        self._share_state()
        self.refresh()

    def _copy_of(self, parameter: torch.Tensor) -> nn.Parameter:
        copy = take_like(PARAMETERS, parameter.detach(), self._device)
        return nn.Parameter(copy, requires_grad=True)

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
    def refresh(self) -> None:
        """Copy the parameters to the host anew: somebody else has written them."""
        for parameter, home in self._resident:
            own_memory(home).copy_(own_memory(parameter))

    def make_state(self, fill: Callable[[torch.optim.Optimizer], None]) -> None:
        """Make on the host what the rule keeps, as the first update would.

        ``fill``: makes the state of the optimizer of the homes.
        """
        with on_host(OPTIMIZER_STATE):
            fill(self.inner)
        self._share_state()

    def _send(self, parameter: torch.Tensor) -> None:
        if self.holds:
            return
        gradient, parameter.grad = parameter.grad, None
        self.gradients.take(self.homes[parameter], gradient)

    def collect(self) -> None:
        """Wait until all gradients that were sent are on the host."""
        self.gradients.collect()

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
    def step(self, closure: None = None) -> None:
        """Update on the host what has a gradient, and bring it to the device.

        ``closure``: not used; torch's optimizers have it.
        """
        del closure
        self.collect()
        for mine, theirs in zip(self.param_groups, self.inner.param_groups, strict=True):
            theirs["lr"] = mine["lr"]
        with on_host(OPTIMIZER_STATE):
            self.inner.step()
        self._share_state()
        event = None
        for parameter, home in self._resident:
            if home.grad is not None:
                event = self._lane.copy(parameter, home)
        if event is not None:
            self._lane.wait(event)

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's own
        """Forget the gradients on both sides; their room on the host stays.

        ``set_to_none``: not used; torch's optimizers have it.
        """
        del set_to_none
        for parameter, home in self.homes.items():
            parameter.grad = home.grad = None

    def _share_state(self) -> None:
        for parameter, home in self.homes.items():
            self.state[parameter] = self.inner.state[home]


def updated_by(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[torch.Tensor]:
    """List what an optimizer updates and reads gradients of: a model's parameters, or copies."""
    trained = [p for p in model.parameters() if p.requires_grad]
    if isinstance(optimizer, HostOptimizer):
        return [optimizer.homes[parameter] for parameter in trained]
    return trained


def rule_of(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer that does the arithmetic; under ZeRO-1 of this device's part."""
    at = "inner" if isinstance(optimizer, HostOptimizer) else "optim"
    found: torch.optim.Optimizer = getattr(optimizer, at, optimizer)
    return found
