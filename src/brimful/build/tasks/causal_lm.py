"""Decoders that predict each next token: text, and chat with its questions masked."""

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from brimful.build.attention import model_inputs
from brimful.build.batch import Batch
from brimful.build.blocks import body_of
from brimful.build.liger import FusedLoss, fuses_loss
from brimful.build.logits import before_head
from brimful.build.loss import TokenLoss
from brimful.build.model import skeleton_of
from brimful.build.parallel.stages import StagePart
from brimful.build.program import Program
from brimful.build.tasks.base import TaskParts
from brimful.values.job import Job
from brimful.values.strategy import Strategy


def skeleton(job: Job, strategy: Strategy) -> nn.Module:
    """Build the decoder on ``meta``."""
    return skeleton_of(AutoModelForCausalLM, job, strategy)


def loss(model: nn.Module, _job: Job, strategy: Strategy) -> TokenLoss | FusedLoss:
    """Make the loss over the model's own head: whole, in chunks, or fused with the head."""
    head = model.get_output_embeddings()
    if strategy.fused_kernels == "liger" and fuses_loss(head):
        return FusedLoss(head)
    return TokenLoss(head, num_chunks=strategy.loss_chunks)


def share(program: Program, batch: Batch, num_targets: int) -> torch.Tensor:
    """Return this micro-batch's share of the step's loss."""
    out = body_of(program.model)(
        input_ids=batch.inputs, **model_inputs(program, batch), use_cache=False
    )
    hidden = before_head(program.model, out[0])
    total: torch.Tensor = program.loss(hidden.flatten(0, 1), batch.labels.flatten(), num_targets)
    return total


def stage(
    program: Program,
    part: StagePart,
    hidden: torch.Tensor | None,
    batch: Batch,
    num_targets: int,
) -> torch.Tensor:
    """Run a micro-batch through some of the blocks; see ``TaskParts.stage``."""
    given = {"input_ids": batch.inputs} if hidden is None else {"inputs_embeds": hidden}
    inputs = {"position_ids": _positions(batch), **given, **model_inputs(program, batch)}
    out: torch.Tensor = body_of(program.model)(**inputs, use_cache=False)[0]
    if not part.is_last:
        return out
    out = before_head(program.model, out)
    total: torch.Tensor = program.loss(out.flatten(0, 1), batch.labels.flatten(), num_targets)
    return total


def _positions(batch: Batch) -> torch.Tensor:
    """Number tokens: hidden states may be this device's part of them."""
    return torch.arange(batch.inputs.shape[1], device=batch.inputs.device)[None]


def sample(job: Job, strategy: Strategy) -> Batch:
    """Make a micro-batch of rows as long as they get; which tokens are whose decides no size."""
    shape = (strategy.micro_batch, job.seq_len)
    ids = torch.zeros((), dtype=torch.int64, device="cpu").expand(shape)
    if job.packing == "wrapped":
        return Batch(ids, ids)
    return Batch(ids, ids, torch.ones((), dtype=torch.int32, device="cpu").expand(shape))


PARTS = TaskParts(skeleton=skeleton, loss=loss, share=share, sample=sample, stage=stage)
