"""Activation checkpointing of the first K decoder blocks, by the model class's own switch."""

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from brimful.strategy import Strategy, num_checkpointed


def checkpoint_blocks(model: nn.Module, strategy: Strategy, *, num_layers: int) -> None:
    """Recompute the activations of the first blocks in the backward pass.

    Non-reentrant checkpoints keep saved-tensor hooks and module hooks in order. The generators'
    states need not be kept: this version trains without dropout.

    Args:
        model: A ``transformers`` model.
        strategy: Says how many blocks, from the first on.
        num_layers: Blocks that the model has.
    """
    num_blocks = num_checkpointed(strategy, num_layers=num_layers)
    for block in decoder_blocks(model)[:num_blocks]:
        block.gradient_checkpointing = True
        block._gradient_checkpointing_func = partial(  # noqa: SLF001 - the class's own switch
            checkpoint, use_reentrant=False, preserve_rng_state=False
        )


def decoder_blocks(model: nn.Module) -> list[nn.Module]:
    """List the decoder blocks in the order in which they run."""
    return [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
