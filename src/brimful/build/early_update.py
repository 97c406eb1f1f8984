"""The optimizer's update inside the backward pass: each parameter as soon as its gradient is whole.

Of all gradients one exists at a time. Exact where nothing has to know all gradients first: no clip,
one micro-batch, no loss scale (``brimful.exact``). A gradient that is not finite has been applied
by the time that the step's norm says so. As torchtune's ``optimizer_in_bwd``, with one optimizer
for all parameters, so that state and checkpoints are those of any other run.
"""

from typing import Any

import torch

from brimful.build.gradient_clip import gradient_norm
from brimful.build.precision.masters import MasterWeights

Group = dict[str, Any]


class EarlyUpdate:
    """Updates parameters from inside the backward pass."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Listen to every parameter's gradient.

        Args:
            optimizer: Over all parameters that train, on one device.
        """
        self._optimizer = optimizer
        self._norms: list[torch.Tensor] = []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.register_post_accumulate_grad_hook(self._hook(group))

    def begin(self, learning_rate: float) -> None:
        """Begin a step at a learning rate."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        if isinstance(self._optimizer, MasterWeights):
            self._optimizer.ready()

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

    def _step(self, parameter: torch.Tensor, group: Group) -> None:
        whole = self._optimizer.param_groups
        self._optimizer.param_groups = [{**group, "params": [parameter]}]
        try:
            self._optimizer.step()
        finally:
            self._optimizer.param_groups = whole
