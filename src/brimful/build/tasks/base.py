"""The parts that every task has."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from brimful.build.batch import Batch
from brimful.build.parallel.stages import StagePart
from brimful.build.program import Program
from brimful.values.job import Job
from brimful.values.strategy import Strategy

StageRun = Callable[[Program, StagePart, torch.Tensor | None, Batch, int], torch.Tensor]


class TaskParts(NamedTuple):
    """How a task is built and run.

    Attributes:
        skeleton: Builds the model on the ``meta`` device, adapters and quantised layers included.
        loss: Makes the module that turns the model's last states into a loss; its inner modules
            belong to the model.
        share: Runs one micro-batch, already on the device, and returns its share of the step's
            loss: summed over its unmasked targets, divided by ``num_targets`` of the whole step.
        sample: Makes the largest micro-batch that the job and the strategy allow, on the CPU and of
            no meaning, for simulating.
        stage: Runs one micro-batch through one stage of a pipeline: given the program, the stage,
            what the one before hands on (None: it is the first), the micro-batch, ``num_targets``
            of the whole step; returns what the next one is given, or the share of the loss. None: a
            task that no pipeline runs.
    """

    skeleton: Callable[[Job, Strategy], nn.Module]
    loss: Callable[[nn.Module, Job, Strategy], nn.Module]
    share: Callable[[Program, Batch, int], torch.Tensor]
    sample: Callable[[Job, Strategy], Batch]
    stage: StageRun | None = None
