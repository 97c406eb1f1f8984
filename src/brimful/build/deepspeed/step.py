"""DeepSpeed's part of a training step: backward, and the update.

Imports no DeepSpeed: the engine is at hand as the program's root. It averages gradients over the
processes and divides losses by the number of micro-batches; neither is wanted, as each process has
its share of one global loss. The second is switched off, the first undone beforehand.
"""

from typing import Any

import torch

from brimful.build.program import Program
from brimful.values.strategy import data_parallel


def runs(program: Program) -> bool:
    """Whether a program's root is DeepSpeed's engine."""
    return program.strategy.engine == "deepspeed"


def mark_last(program: Program, *, is_last: bool) -> None:
    """Say before a micro-batch whether the update follows it.

    ``is_last``: whether it is the last of a step.
    """
    engine: Any = program.root
    engine.set_gradient_accumulation_boundary(is_last)


def backward(program: Program, loss: torch.Tensor) -> None:
    """Run backward of a micro-batch's share of the step's loss.

    The loss scale is Brimful's: DeepSpeed's own grows one step later, and unscales the gradients
    of the step at which it grows by the new scale. It is told the scale less the factor that the
    loss has already, so that 16-bit gradients are as large as on one device.
    """
    engine: Any = program.root
    times = data_parallel(program.strategy)
    if program.scaler is not None:
        engine.optimizer.override_loss_scale(program.scaler.scale / times)
    engine.backward(loss * times, scale_wrt_gas=False)


def update(program: Program, *, learning_rate: float) -> tuple[torch.Tensor, bool]:
    """Clip, step the optimizer and drop the gradients; gradients that are not finite are dropped.

    Returns the norm before clipping and without the loss scale, and whether the step was skipped.
    Raises RunError: no loss scale is small enough.
    """
    engine: Any = program.root
    for group in engine.optimizer.param_groups:
        group["lr"] = learning_rate
    engine.step()
    norm = torch.as_tensor(engine.get_global_grad_norm(), dtype=torch.float32)
    if program.scaler is None:
        return norm, False
    skipped = bool(engine.optimizer.overflow)
    program.scaler.update(is_finite=not skipped)
    return norm, skipped
