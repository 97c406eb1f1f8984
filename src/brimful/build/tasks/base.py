"""The parts that every task has."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from brimful.build.batch import Batch
from brimful.build.program import Program
from brimful.job import Job
from brimful.strategy import Strategy


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
    """

    skeleton: Callable[[Job, Strategy], nn.Module]
    loss: Callable[[nn.Module, Job, Strategy], nn.Module]
    share: Callable[[Program, Batch, int], torch.Tensor]
    sample: Callable[[Job, Strategy], Batch]
