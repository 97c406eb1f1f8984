"""The optimizer's update inside the backward pass: each parameter as soon as its gradient is whole.

Of all gradients one exists at a time. Exact where nothing has to know all gradients first: no clip,
one micro-batch, no loss scale (``exact``). A gradient that is not finite has been applied
by the time that the step's norm says so. As torchtune's ``optimizer_in_bwd``, with one optimizer
for all parameters, so that state and checkpoints are those of any other run.

Of blocks whose parameters are on the host it is the copy on the device that is updated, and then
brought home: as many bytes as the gradient would be, and the host computes nothing. Their state
stays on the device, or is on the host too and travels (``offload.travelling``).
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from brimful.build.gradient_clip import gradient_norm
from brimful.build.offload.lane import Lane
from brimful.build.offload.parameters import AwayBlocks, Due
from brimful.build.offload.travelling import Brought, State, bring, sent_home, take_home
from brimful.build.precision.masters import MasterWeights

Group = dict[str, Any]
NUM_ON_THE_WAY = 2
"""Updated copies that the device still has while the next one is updated."""


class _Sent(NamedTuple):
    """What is on its way home, and what to wait for."""

    events: list[Any]
    tensors: list[torch.Tensor]


class EarlyUpdate:
    """Updates parameters from inside the backward pass."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        away: AwayBlocks | None = None,
        *,
        state_travels: bool = False,
    ) -> None:
        """Listen to every parameter's gradient.

        ``state_travels``: whether the state of these parameters is on the host too.
        """
        self._optimizer = optimizer
        self._device = device
        self._norms: list[torch.Tensor] = []
        self._sent: deque[_Sent] = deque()
        self._home, self._here = Lane(device), Lane(device)
        self._state_travels = state_travels
        at_home = set() if away is None else set(away.parameters)
        self._groups: dict[torch.Tensor, Group] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter in at_home:
                    self._groups[parameter] = group
                else:
                    parameter.register_post_accumulate_grad_hook(self._hook(group))
        if away is not None:
            away.update = self._update_copies

    def begin(self, learning_rate: float) -> None:
        """Begin a step at a learning rate."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        if isinstance(self._optimizer, MasterWeights):
            self._optimizer.ready()

    @property
    def away(self) -> frozenset[torch.Tensor]:
        """Parameters of the host whose copies are updated."""
        return frozenset(self._groups)

    @property
    def travelling(self) -> frozenset[torch.Tensor]:
        """Those of ``away`` whose state is on the host too."""
        return self.away if self._state_travels else frozenset()

    def kept(self, state: State) -> State:
        """Return the first state of a parameter of ``away`` as it is kept between updates."""
        return sent_home(state, self._device) if self._state_travels else state

    def collect(self) -> None:
        """Wait until all that was updated is home: a backward pass is over."""
        while self._sent:
            for event in self._sent.popleft().events:
                self._home.wait(event)
                self._home.finish(event)

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

    def _update_copies(self, due: Sequence[Due]) -> None:
        """Update what stands on the device for parameters of the host, and send it home."""
        ready = self._ready(due[0].home) if due else None
        for number, one in enumerate(due, start=1):
            now, ready = ready, self._ready(due[number].home) if number < len(due) else None
            assert now is not None
            for event in now.events:
                self._here.wait(event)
            self._update_copy(one, now.state)
            self._send(one, now.state)

    def _ready(self, home: torch.Tensor) -> Brought:
        """Have a parameter's state brought, or take it from where it is."""
        state = self._optimizer.state[home]
        return bring(self._here, state) if self._state_travels else Brought(state, [])

    def _update_copy(self, due: Due, state: State) -> None:
        states, copy = self._optimizer.state, due.copy
        copy.grad = due.gradient
        self._norms.append(gradient_norm([copy]))
        states[copy] = state
        try:
            self._step(copy, self._groups[due.home])
        finally:
            del states[copy]
            copy.grad = None

    def _send(self, due: Due, state: State) -> None:
        """Begin to bring a copy and its state home, and forget what has arrived."""
        events, tensors = [self._home.copy(due.home, due.copy)], [due.copy]
        if self._state_travels:
            more = take_home(self._home, self._optimizer.state[due.home], state)
            events, tensors = events + more[0], tensors + more[1]
        self._sent.append(_Sent(events, tensors))
        while len(self._sent) > NUM_ON_THE_WAY:
            for event in self._sent.popleft().events:
                self._home.wait(event)

    def _step(self, parameter: torch.Tensor, group: Group) -> None:
        whole = self._optimizer.param_groups
        self._optimizer.param_groups = [{**group, "params": [parameter]}]
        try:
            self._optimizer.step()
        finally:
            self._optimizer.param_groups = whole
