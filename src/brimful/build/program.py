"""A program: model, loss and optimizer ready to step, and the step itself."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from brimful.build.attention import causal_mask
from brimful.build.checkpointing import checkpoint_blocks
from brimful.build.loss import IGNORE_INDEX, TokenLoss
from brimful.build.model import build_skeleton, materialize
from brimful.build.optimizer import build_optimizer, clip_gradients
from brimful.build.phases import phase
from brimful.build.precision import PARAMETER_DTYPE, forward_context
from brimful.job import Job
from brimful.strategy import Strategy, num_checkpointed


class Batch(NamedTuple):
    """One micro-batch.

    Attributes:
        input_ids: [batch, tokens], int64.
        labels: [batch, tokens], int64: the token after each input, or ``IGNORE_INDEX``.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor


class StepResult(NamedTuple):
    """What one optimizer step did.

    Attributes:
        loss: Mean loss per unmasked token before the update, in nats.
        grad_norm: Global gradient norm before clipping.
        num_tokens: Unmasked tokens.
    """

    loss: torch.Tensor
    grad_norm: torch.Tensor
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Everything that a training step touches."""

    job: Job
    strategy: Strategy
    model: nn.Module
    loss: TokenLoss
    optimizer: torch.optim.Optimizer
    device: torch.device


def build_program(job: Job, strategy: Strategy, device: torch.device) -> Program:
    """Build model, loss and optimizer on a device, with random weights.

    Args:
        job: What is trained.
        strategy: How it is run.
        device: Where: ``cpu``, ``cuda``, or the pretend ``gpu`` under a fake mode.
    """
    return finish_program(job, strategy, device, build_skeleton(job, strategy))


def finish_program(
    job: Job, strategy: Strategy, device: torch.device, skeleton: nn.Module
) -> Program:
    """Turn a skeleton into a program; see ``build_program``.

    Apart from it because a skeleton must be built outside a fake mode, and the rest inside.
    """
    model = materialize(skeleton, device=device, seed=job.seed)
    num_blocks = num_checkpointed(strategy, num_layers=job.model.num_layers)
    checkpoint_blocks(model, num_blocks)
    loss = TokenLoss(model.get_output_embeddings(), num_chunks=strategy.loss_chunks)
    return Program(
        job=job,
        strategy=strategy,
        model=model,
        loss=loss,
        optimizer=build_optimizer(job, model),
        device=device,
    )


def gradients(program: Program) -> list[torch.Tensor]:
    """List the gradients that exist now."""
    return [p.grad for p in program.model.parameters() if p.grad is not None]


def state_tensors(program: Program) -> list[torch.Tensor]:
    """List the tensors of the optimizer's state that exist now."""
    states = program.optimizer.state.values()
    return [x for state in states for x in state.values() if isinstance(x, torch.Tensor)]


def count_tokens(micro_batches: Iterable[Batch]) -> int:
    """Count the unmasked labels of a step (on the host, before anything moves)."""
    return sum(int((batch.labels != IGNORE_INDEX).sum()) for batch in micro_batches)


def micro_step(program: Program, batch: Batch, *, num_tokens: int) -> torch.Tensor:
    """Run forward and backward of one micro-batch; gradients accumulate.

    Args:
        program: The program.
        batch: One micro-batch on the host.
        num_tokens: Unmasked tokens of the whole step.

    Returns:
        This micro-batch's share of the step's loss, detached, on the device.
    """
    with phase("forward", program):
        input_ids = batch.input_ids.to(program.device)
        labels = batch.labels.to(program.device)
        with forward_context(program.job.precision, program.device):
            hidden = _hidden_states(program, input_ids)
            loss = program.loss(hidden.flatten(0, 1), labels.flatten(), num_tokens)
        del hidden
    with phase("backward", program):
        loss.backward()
    return loss.detach()


def _hidden_states(program: Program, input_ids: torch.Tensor) -> torch.Tensor:
    mask = causal_mask(
        program.strategy.attention,
        seq_len=input_ids.shape[1],
        dtype=PARAMETER_DTYPE[program.job.precision],
        device=program.device,
    )
    out = program.model.base_model(input_ids=input_ids, attention_mask=mask, use_cache=False)
    return out[0]


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
    program: Program, micro_batches: Sequence[Batch], *, num_tokens: int, learning_rate: float
) -> StepResult:
    """Run one optimizer step.

    Args:
        program: The program.
        micro_batches: The step's micro-batches, on the host.
        num_tokens: Unmasked tokens in all of them (``count_tokens``).
        learning_rate: For this step.
    """
    losses = [micro_step(program, batch, num_tokens=num_tokens) for batch in micro_batches]
    grad_norm = update(program, learning_rate=learning_rate)
    return StepResult(torch.stack(losses).sum(), grad_norm, num_tokens)


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def evaluate(program: Program, batches: Sequence[Batch]) -> float:
    """Return the mean loss per unmasked token over ``batches``, in nats, without gradients."""
    num_tokens = count_tokens(batches)
    total = 0.0
    program.model.eval()
    for batch in batches:
        with phase("eval", program), forward_context(program.job.precision, program.device):
            input_ids = batch.input_ids.to(program.device)
            hidden = _hidden_states(program, input_ids)
            labels = batch.labels.to(program.device).flatten()
            total += float(program.loss(hidden.flatten(0, 1), labels, num_tokens))
    program.model.train()
    return total
