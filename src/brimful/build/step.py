"""One optimizer step: forward and backward of every micro-batch, then the update."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch

from brimful.build.batch import Batch, blank, count_targets
from brimful.build.deepspeed import step as deepspeed
from brimful.build.drawing import draw_anew
from brimful.build.first_state import make_state
from brimful.build.gradient_clip import (
    HOST_PIECE,
    PIECE,
    clip_factor,
    clip_gradients,
    gradient_norm,
)
from brimful.build.offload import HostOptimizer, rule_of, updated_by
from brimful.build.parallel import (
    averaged_over,
    give_gradients,
    lend_gradients,
    reshard,
    sync_gradients,
    without_sync,
)
from brimful.build.parallel.place import data_group, even_part, own_part, row_group, summed
from brimful.build.phases import phase
from brimful.build.pipelined import judged_share, pipelined_steps
from brimful.build.precision import forward_context, micro_batch_context
from brimful.build.precision.loss_scaling import is_finite, unscale
from brimful.build.precision.masters import MasterWeights
from brimful.build.program import Program, gradients
from brimful.values.strategy import gathers


class StepResult(NamedTuple):
    """What one optimizer step did.

    Attributes:
        loss: Mean loss per unmasked target before the update, in nats; never scaled.
        grad_norm: Global gradient norm before clipping and without the loss scale, in fp32; Inf or
            NaN where the step was skipped.
        num_targets: Unmasked targets.
        skipped: Whether gradients overflowed, so that nothing was updated.
        loss_scale: What this step's loss was multiplied by; None where losses are not scaled.
    """

    loss: torch.Tensor
    grad_norm: torch.Tensor
    num_targets: int
    skipped: bool
    loss_scale: float | None


def micro_step(program: Program, batch: Batch, *, num_targets: int) -> torch.Tensor:
    """Run forward and backward of one micro-batch; gradients accumulate.

    Returns this micro-batch's share of the step's loss, detached, on the device.
    """
    lend_gradients(program.root)
    with micro_batch_context(program.job.precision):
        with phase("forward", program):
            moved = batch.to(program.device)
            with _forward_context(program):
                loss = program.root(program, moved, num_targets)
        with phase("backward", program):
            _backward(program, loss)
    return loss.detach()


def forward_alone(program: Program, batch: Batch, *, num_targets: int) -> None:
    """Run what ``micro_step`` does before its backward pass, without gradients, in no phase."""
    with torch.no_grad(), micro_batch_context(program.job.precision), _forward_context(program):
        program.root(program, batch.to(program.device), num_targets)


def _backward(program: Program, loss: torch.Tensor) -> None:
    if deepspeed.runs(program):
        deepspeed.backward(program, loss)
        return
    scaled = loss if program.scaler is None else program.scaler.scaled(loss)
    times = averaged_over(program.root)
    (scaled if times == 1 else scaled * times).backward()
    give_gradients(program.root)
    program.offloaded.end_pass()
    if isinstance(program.optimizer, HostOptimizer):
        program.optimizer.collect()
    if program.early is not None:
        program.early.collect()


def _forward_context(program: Program) -> AbstractContextManager[None]:
    sharded = gathers(program.strategy) or deepspeed.runs(program)  # its root enters the context
    return forward_context(program.job.precision, program.device, is_sharded=sharded)


def update(program: Program, *, learning_rate: float) -> tuple[torch.Tensor, bool]:
    """Unscale, clip, step the optimizer and drop the gradients.

    Where losses are scaled the norm is read from the device, the one host sync of a step: what is
    not finite is not stepped on.

    Returns the norm before clipping, and whether the step was skipped. Raises RunError: no loss
    scale is small enough.
    """
    with phase("optimizer", program):
        if deepspeed.runs(program):
            return deepspeed.update(program, learning_rate=learning_rate)
        if program.early is not None:
            return program.early.norm(), False
        for group in program.optimizer.param_groups:
            group["lr"] = learning_rate
        grad_norm = _unscale_and_clip(program)
        skipped = program.scaler is not None and not is_finite(grad_norm)
        if not skipped:
            program.optimizer.step()
        program.optimizer.zero_grad(set_to_none=True)
        if program.scaler is not None:
            program.scaler.update(is_finite=not skipped)
    return grad_norm, skipped


def _unscale_and_clip(program: Program) -> torch.Tensor:
    """Undo the loss scale and clip; masters do both themselves, in fp32."""
    parameters = updated_by(program.optimizer, program.model)
    rule = rule_of(program.optimizer)
    piece = HOST_PIECE if isinstance(program.optimizer, HostOptimizer) else PIECE
    scale = None if program.scaler is None else program.scaler.scale
    row = None if program.pipeline is None else program.pipeline.row
    if isinstance(rule, MasterWeights):
        norm = gradient_norm(parameters, row=row, piece=piece)
        if scale is not None:
            norm = norm / scale
        factor = clip_factor(norm, program.job.clip)
        rule.gradient_factor = factor if scale is None else factor / scale
        return norm
    if scale is not None:
        unscale(gradients(program), scale)
    return clip_gradients(parameters, program.job.clip, row=row, piece=piece)


def train_step(
    program: Program,
    micro_batches: Sequence[Batch],
    *,
    num_targets: int,
    learning_rate: float,
    step: int = 1,
) -> StepResult:
    """Run one optimizer step.

    ``micro_batches``: this process's part of the step (``own_part``), on the host. ``num_targets``:
    unmasked targets of the whole step (``count_targets``), on all devices. ``step``: which it is,
    from 1; what is dropped hangs on it. Raises RunError: no loss scale is small enough for the
    gradients.
    """
    make_state(program)
    if program.early is not None:
        program.early.begin(learning_rate)
    loss_scale = None if program.scaler is None else program.scaler.scale
    losses = _all_micro_steps(program, micro_batches, num_targets=num_targets, step=step)
    grad_norm, skipped = update(program, learning_rate=learning_rate)
    return StepResult(
        loss=_of_all(program, torch.stack(losses).sum()),
        grad_norm=grad_norm,
        num_targets=num_targets,
        skipped=skipped,
        loss_scale=loss_scale,
    )


def _all_micro_steps(
    program: Program, micro_batches: Sequence[Batch], *, num_targets: int, step: int
) -> list[torch.Tensor]:
    if program.pipeline is not None:
        return pipelined_steps(program, micro_batches, num_targets=num_targets)
    losses = []
    for number, batch in enumerate(micro_batches):
        _announce(program, is_last=number == len(micro_batches) - 1)
        draw_anew(program, step=step, number=number)
        losses.append(micro_step(program, batch, num_targets=num_targets))
    return losses


def _of_all(program: Program, loss: torch.Tensor) -> torch.Tensor:
    """Add up the shares of a loss of all devices."""
    over_data = summed(loss, data_group(program.mesh))
    return summed(over_data, row_group(program.mesh))


def _announce(program: Program, *, is_last: bool) -> None:
    """Say to what spreads the program whether the next micro-batch is the last of a step."""
    if deepspeed.runs(program):
        deepspeed.mark_last(program, is_last=is_last)
    else:
        sync_gradients(program.root, program.strategy, is_last=is_last)
    if isinstance(program.optimizer, HostOptimizer):
        program.optimizer.holds = program.strategy.accumulate == "hold" and not is_last


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def evaluate(program: Program, batches: Sequence[Batch]) -> float:
    """Return the mean loss per unmasked target over ``batches``, in nats, without gradients.

    ``program``: the program; of many devices all call this. ``batches``: the whole sample, on the
    host; each device runs its own part of it.
    """
    num_targets = count_targets(batches)
    total = torch.zeros((), dtype=torch.float64)
    own, precision = _own_sample(program, batches), program.job.precision
    program.model.eval()
    if program.pipeline is not None:
        total += judged_share(program, own, num_targets=num_targets)
        program.model.train()
        return float(_of_all(program, total.to(program.device)))
    for batch in own:
        with (
            phase("eval", program),
            micro_batch_context(precision),
            _forward_context(program),
        ):
            share = without_sync(program.root)(program, batch.to(program.device), num_targets)
            total += float(share)
    reshard(program.root)
    program.model.train()
    return float(summed(total.to(program.device), data_group(program.mesh)))


def _own_sample(program: Program, batches: Sequence[Batch]) -> Sequence[Batch]:
    """Return what of a sample this process runs: as many as the others where all must gather."""
    if gathers(program.strategy):
        return even_part(batches, program.strategy, fill=blank)
    return own_part(batches, program.strategy)
