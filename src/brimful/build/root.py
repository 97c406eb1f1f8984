"""What a micro-batch is called through: a module around the model and its loss.

A task calls parts of a model (its decoder, then its head), and what spreads a model over devices
hangs on one module's call: it gathers before it and reduces after it. This is that module.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from brimful.build.router_losses import RouterLosses
from brimful.build.tasks.base import TaskParts


class Root(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    """Runs a task's share of the loss; holds the model, so that its parameters are the model's."""

    def __init__(
        self, model: nn.Module, parts: TaskParts, routers: RouterLosses | None = None
    ) -> None:
        """Keep what is called."""
        super().__init__()
        self.model = model
        self._share = parts.share
        self._routers = routers

    def forward(
        self,
        program: Any,
        batch: Any,
        num_targets: int,
        asked: Callable[[Any, Any], torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Return a micro-batch's share of the step's loss; see ``TaskParts.share``.

        ``asked``: returns something else of the batch, with the model gathered as for a loss.
        """
        if asked is not None:
            return asked(program, batch)
        loss = self._share(program, batch, num_targets)
        return loss if self._routers is None else self._routers.added_to(loss, batch)
