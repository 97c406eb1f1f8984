"""Modules of the user's, with the loss that their factory brings (``build.user_module``)."""

from typing import Any

import torch
from torch import nn

from brimful.build.batch import Batch
from brimful.build.program import Program
from brimful.build.tasks.base import TaskParts
from brimful.build.user_module import (
    TrainableModule,
    UserModule,
    make_on_meta,
    take_sample,
    without_dropout,
)
from brimful.errors import UnsupportedError
from brimful.values.job import Job
from brimful.values.strategy import Strategy

__all__ = ["PARTS", "SummedLoss", "TrainableModule"]


class SummedLoss(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    """The user's loss, divided by the labels of the whole step."""

    def __init__(self, model: UserModule) -> None:
        """Keep the user's function; it is no module of the model's."""
        super().__init__()
        self.summed = model.summed

    def forward(self, output: Any, labels: torch.Tensor, num_targets: int) -> torch.Tensor:
        """Return the user's sum of losses divided by ``num_targets``."""
        return self.summed(output, labels) / num_targets


def skeleton(job: Job, _strategy: Strategy) -> UserModule:
    """Build the user's module on ``meta``.

    Raises InputError: the factory fails.
    """
    if job.method != "full":
        raise UnsupportedError(
            f"method={job.method} puts adapters into models of transformers, and {job.model.name} "
            f"is a module of yours; use full"
        )
    made = make_on_meta(job.model.name)
    if job.dropout == "off":
        without_dropout(made.model)
    return UserModule(job.model.name, made)


def loss(model: nn.Module, _job: Job, _strategy: Strategy) -> SummedLoss:
    """Make the loss of the user's."""
    assert isinstance(model, UserModule)  # what skeleton made
    return SummedLoss(model)


def share(program: Program, batch: Batch, num_targets: int) -> torch.Tensor:
    """Return this micro-batch's share of the step's loss."""
    inputs = batch.inputs
    if inputs.is_floating_point():
        held = next((p.dtype for p in program.model.parameters()), inputs.dtype)
        inputs = inputs.to(held)
    total: torch.Tensor = program.loss(program.model(inputs), batch.labels, num_targets)
    return total


def sample(job: Job, strategy: Strategy) -> Batch:
    """Take a micro-batch of the user's."""
    return Batch(*take_sample(job.model.name, strategy.micro_batch))


PARTS = TaskParts(skeleton=skeleton, loss=loss, share=share, sample=sample)
