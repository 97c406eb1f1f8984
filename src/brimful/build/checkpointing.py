"""Activation checkpointing of the first K decoder blocks, by the model class's own switch."""

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer


def checkpoint_blocks(model: nn.Module, num_blocks: int) -> None:
    """Recompute the activations of the first ``num_blocks`` blocks in the backward pass.

    Non-reentrant checkpoints keep saved-tensor hooks and module hooks in order. The generators'
    states need not be kept: this version trains without dropout.

    Args:
        model: A ``transformers`` model.
        num_blocks: How many; 0 checkpoints none.
    """
    for block in decoder_blocks(model)[:num_blocks]:
        block.gradient_checkpointing = True
        block._gradient_checkpointing_func = partial(  # noqa: SLF001 - the class's own switch
            checkpoint, use_reentrant=False, preserve_rng_state=False
        )


def decoder_blocks(model: nn.Module) -> list[nn.Module]:
    """List the decoder blocks in the order in which they run."""
    return [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
