"""The optimizer's update inside the backward pass: each parameter as soon as its gradient is whole.

Of all gradients one exists at a time. Exact where nothing has to know all gradients first: no clip,
one micro-batch, no loss scale (``brimful.exact``). A gradient that is not finite has been applied
by the time that the step's norm says so. As torchtune's ``optimizer_in_bwd``, with one optimizer
for all parameters, so that state and checkpoints are those of any other run.

Of blocks whose parameters are on the host it is the copy on the device that is updated, by state
that stays there, and then brought home: as many bytes as the gradient would be, and the host
computes nothing.
"""

from collections import deque
from typing import Any, NamedTuple

import torch

from brimful.build.gradient_clip import gradient_norm
from brimful.build.offload.lane import Lane
from brimful.build.offload.parameters import AwayBlocks
from brimful.build.precision.masters import MasterWeights

Group = dict[str, Any]
NUM_ON_THE_WAY = 2
"""Updated copies that the device still has while the next one is updated."""


class _Sent(NamedTuple):
    """A copy on its way home, and what to wait for."""

    event: Any
    copy: torch.Tensor


class EarlyUpdate:
    """Updates parameters from inside the backward pass."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, device: torch.device, away: AwayBlocks | None = None
    ) -> None:
        """Listen to every parameter's gradient.

        Args:
            optimizer: Over all parameters that train, on one device.
            device: Where they are updated.
            away: Blocks whose parameters are on the host.
        """
        self._optimizer = optimizer
        self._device = device
        self._norms: list[torch.Tensor] = []
        self._sent: deque[_Sent] = deque()
        self._lane = None if away is None else Lane(device)
        at_home = set() if away is None else set(away.parameters)
        self._groups: dict[torch.Tensor, Group] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter in at_home:
                    self._groups[parameter] = group
                else:
                    parameter.register_post_accumulate_grad_hook(self._hook(group))
        if away is not None:
            away.update = self._update_copy

    def begin(self, learning_rate: float) -> None:
        """Begin a step at a learning rate."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        if isinstance(self._optimizer, MasterWeights):
            self._optimizer.ready()

    @property
    def away(self) -> frozenset[torch.Tensor]:
        """Parameters of the host; their state is on the device."""
        return frozenset(self._groups)

    def collect(self) -> None:
        """Wait until all updated parameters are home: a backward pass is over."""
        while self._sent:
            sent = self._sent.popleft()
            assert self._lane is not None
            self._lane.wait(sent.event)
            self._lane.finish(sent.event)

    def norm(self) -> torch.Tensor:
        """Return the global norm of the gradients that were applied, and forget them."""
        norms, self._norms = self._norms, []
        return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.tensor(0.0)

    def _hook(self, group: Group) -> Any:
        def update(parameter: torch.Tensor) -> None:
            self._norms.append(gradient_norm([parameter]))
            self._step(parameter, group)
            parameter.grad = None

        return update

    def _update_copy(self, home: torch.Tensor, copy: torch.Tensor, gradient: torch.Tensor) -> None:
        """Update what stands on the device for a parameter of the host, and send it home."""
        states = self._optimizer.state
        copy.grad = gradient
        self._norms.append(gradient_norm([copy]))
        states[copy] = states[home]
        try:
            self._step(copy, self._groups[home])
        finally:
            states[home] = states.pop(copy)
            copy.grad = None
        assert self._lane is not None
        self._sent.append(_Sent(self._lane.copy(home, copy), copy))
        while len(self._sent) > NUM_ON_THE_WAY:
            self._lane.wait(self._sent.popleft().event)

    def _step(self, parameter: torch.Tensor, group: Group) -> None:
        whole = self._optimizer.param_groups
        self._optimizer.param_groups = [{**group, "params": [parameter]}]
        try:
            self._optimizer.step()
        finally:
            self._optimizer.param_groups = whole
