"""One optimizer step: forward and backward of every micro-batch, then the update."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from brimful.build.batch import Batch, count_targets
from brimful.build.optimizer import clip_gradients
from brimful.build.phases import phase
from brimful.build.precision import forward_context
from brimful.build.program import Program
from brimful.build.tasks import task_of


class StepResult(NamedTuple):
    """What one optimizer step did.

    Attributes:
        loss: Mean loss per unmasked target before the update, in nats.
        grad_norm: Global gradient norm before clipping.
        num_targets: Unmasked targets.
    """

    loss: torch.Tensor
    grad_norm: torch.Tensor
    num_targets: int


def micro_step(program: Program, batch: Batch, *, num_targets: int) -> torch.Tensor:
    """Run forward and backward of one micro-batch; gradients accumulate.

    Args:
        program: The program.
        batch: One micro-batch on the host.
        num_targets: Unmasked targets of the whole step.

    Returns:
        This micro-batch's share of the step's loss, detached, on the device.
    """
    with phase("forward", program):
        moved = batch.to(program.device)
        with forward_context(program.job.precision, program.device):
            loss = task_of(program.job).share(program, moved, num_targets)
    with phase("backward", program):
        loss.backward()
    return loss.detach()


def update(program: Program, *, learning_rate: float) -> torch.Tensor:
    """Clip, step the optimizer and drop the gradients; returns the norm before clipping."""
    with phase("optimizer", program):
        parameters = [p for p in program.model.parameters() if p.requires_grad]
        grad_norm = clip_gradients(parameters, program.job.clip)
        for group in program.optimizer.param_groups:
            group["lr"] = learning_rate
        program.optimizer.step()
        program.optimizer.zero_grad(set_to_none=True)
    return grad_norm


def train_step(
    program: Program, micro_batches: Sequence[Batch], *, num_targets: int, learning_rate: float
) -> StepResult:
    """Run one optimizer step.

    Args:
        program: The program.
        micro_batches: The step's micro-batches, on the host.
        num_targets: Unmasked targets in all of them (``count_targets``).
        learning_rate: For this step.
    """
    losses = [micro_step(program, batch, num_targets=num_targets) for batch in micro_batches]
    grad_norm = update(program, learning_rate=learning_rate)
    return StepResult(torch.stack(losses).sum(), grad_norm, num_targets)


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def evaluate(program: Program, batches: Sequence[Batch]) -> float:
    """Return the mean loss per unmasked target over ``batches``, in nats, without gradients."""
    num_targets = count_targets(batches)
    total = 0.0
    program.model.eval()
    for batch in batches:
        with phase("eval", program), forward_context(program.job.precision, program.device):
            share = task_of(program.job).share(program, batch.to(program.device), num_targets)
            total += float(share)
    program.model.train()
    return total
