"""Activation checkpointing of the first K decoder blocks, by the model class's own switch."""

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer


def checkpoint_blocks(model: nn.Module, num_blocks: int) -> None:
    """Recompute the activations of the first ``num_blocks`` blocks in the backward pass.

    Non-reentrant checkpoints keep saved-tensor hooks and module hooks in order. The generators'
    states need not be kept: this version trains without dropout.

    Args:
        model: A ``transformers`` model.
        num_blocks: How many; 0 checkpoints none.
    """
    if num_blocks == 0:
        return
    model.gradient_checkpointing_enable(
        gradient_checkpointing_kwargs={"use_reentrant": False, "preserve_rng_state": False}
    )
    blocks = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    for block in blocks[num_blocks:]:
        block.gradient_checkpointing = False
    model.config.use_cache = False


def decoder_blocks(model: torch.nn.Module) -> list[nn.Module]:
    """List the decoder blocks in the order in which they run."""
    return [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
