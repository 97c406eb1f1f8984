"""Decoders that predict each next token: text, and chat with its questions masked."""

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from brimful.build.attention import causal_mask
from brimful.build.batch import Batch
from brimful.build.loss import TokenLoss
from brimful.build.model import skeleton_of
from brimful.build.precision import PARAMETER_DTYPE
from brimful.build.program import Program
from brimful.build.tasks.base import TaskParts
from brimful.job import Job
from brimful.strategy import Strategy


def skeleton(job: Job, strategy: Strategy) -> nn.Module:
    """Build the decoder on ``meta``."""
    return skeleton_of(AutoModelForCausalLM, job, strategy)


def loss(model: nn.Module, strategy: Strategy) -> TokenLoss:
    """Make the loss over the model's own head, whole or in chunks."""
    return TokenLoss(model.get_output_embeddings(), num_chunks=strategy.loss_chunks)


def share(program: Program, batch: Batch, num_targets: int) -> torch.Tensor:
    """Return this micro-batch's share of the step's loss."""
    hidden = _hidden_states(program, batch.inputs)
    total: torch.Tensor = program.loss(hidden.flatten(0, 1), batch.labels.flatten(), num_targets)
    return total


def _hidden_states(program: Program, input_ids: torch.Tensor) -> torch.Tensor:
    # Padding comes last, so that a causal token never sees it: only packing needs more.
    mask = causal_mask(
        program.strategy.attention,
        seq_len=input_ids.shape[1],
        dtype=PARAMETER_DTYPE[program.job.precision],
        device=program.device,
    )
    out = program.model.base_model(input_ids=input_ids, attention_mask=mask, use_cache=False)
    hidden: torch.Tensor = out[0]
    return hidden


def sample(job: Job, strategy: Strategy) -> Batch:
    """Make a micro-batch of whole sequences."""
    ids = torch.zeros((strategy.micro_batch, job.seq_len), dtype=torch.int64, device="cpu")
    return Batch(ids, ids)


PARTS = TaskParts(skeleton=skeleton, loss=loss, share=share, sample=sample)
