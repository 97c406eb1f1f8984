"""A program: model, loss and optimizer ready to step."""

from dataclasses import dataclass

import torch
from torch import nn

from brimful.build.precision.loss_scaling import LossScaler
from brimful.job import Job
from brimful.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Everything that a training step touches; ``scaler`` is None where no loss is scaled.

    ``root`` is what a micro-batch is called through: it holds the model and nothing else.
    """

    job: Job
    strategy: Strategy
    root: nn.Module
    model: nn.Module
    loss: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: LossScaler | None
    device: torch.device


def gradients(program: Program) -> list[torch.Tensor]:
    """List the gradients that exist now."""
    return [p.grad for p in program.model.parameters() if p.grad is not None]


def state_tensors(program: Program) -> list[torch.Tensor]:
    """List the tensors of the optimizer's state that exist now."""
    local = getattr(program.optimizer, "optim", program.optimizer)  # ZeRO-1: this device's part
    states = local.state.values()
    return [x for state in states for x in state.values() if isinstance(x, torch.Tensor)]
