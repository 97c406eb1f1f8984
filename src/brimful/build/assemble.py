"""Putting a program together: the one place that turns a job and a strategy into something runs."""

import torch
from torch import nn

from brimful.build.checkpointing import checkpoint_blocks
from brimful.build.model import materialize
from brimful.build.optimizer import build_optimizer
from brimful.build.program import Program
from brimful.build.tasks import task_of
from brimful.job import Job
from brimful.strategy import Strategy


def build_program(job: Job, strategy: Strategy, device: torch.device) -> Program:
    """Build model, loss and optimizer on a device.

    Args:
        job: What is trained.
        strategy: How it is run.
        device: Where: ``cpu``, ``cuda``, or the pretend ``gpu`` under a fake mode.
    """
    return finish_program(job, strategy, device, build_skeleton(job, strategy))


def build_skeleton(job: Job, strategy: Strategy) -> nn.Module:
    """Build the model on the ``meta`` device: shapes and code, no bytes."""
    return task_of(job).skeleton(job, strategy)


def finish_program(
    job: Job, strategy: Strategy, device: torch.device, skeleton: nn.Module
) -> Program:
    """Turn a skeleton into a program; see ``build_program``.

    Apart from it because a skeleton must be built outside a fake mode, and the rest inside.
    """
    model = materialize(skeleton, device=device, seed=job.seed)
    checkpoint_blocks(model, strategy, num_layers=job.model.num_layers)
    return Program(
        job=job,
        strategy=strategy,
        model=model,
        loss=task_of(job).loss(model, strategy),
        optimizer=build_optimizer(job, model),
        device=device,
    )
