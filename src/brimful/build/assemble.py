"""Putting a program together: the one place that turns a job and a strategy into something runs."""

import torch
from torch import nn

from brimful.build.checkpointing import checkpoint_blocks
from brimful.build.exactness import check_built
from brimful.build.model import materialize
from brimful.build.optimizers import build_optimizer
from brimful.build.parallel import parallelize, parted, settle
from brimful.build.precision import build_scaler
from brimful.build.program import Program
from brimful.build.root import Root
from brimful.build.tasks import task_of
from brimful.job import Job
from brimful.kernel_support import Place, check_attention
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
    check_built(job, strategy, skeleton)
    if device.type in {"cpu", "cuda"}:  # the pretend one stands for either: ``simulate`` asks
        check_attention(job, strategy, Place(device.type, _capability(device)))
    root = Root(skeleton, task_of(job))
    parallelize(root, job, strategy, device)
    model = materialize(skeleton, device=device, job=job)
    checkpoint_blocks(model, strategy, num_layers=job.model.num_layers)
    return Program(
        job=job,
        strategy=strategy,
        root=settle(root, job, strategy, device),
        model=model,
        loss=task_of(job).loss(model, strategy),
        optimizer=build_optimizer(job, model, parted=parted(strategy, device)),
        scaler=build_scaler(job),
        device=device,
    )


def _capability(device: torch.device) -> float:
    """Return the CUDA compute capability of a device, e.g. 9.0; 0 for a CPU."""
    if device.type != "cuda":
        return 0.0
    major, minor = torch.cuda.get_device_capability(device)
    return float(major + minor / 10)
