"""The blocks of a model: what is checkpointed, sharded and dealt out to stages as one."""

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer


def decoder_blocks(model: nn.Module) -> list[nn.Module]:
    """List the decoder blocks in the order in which they run."""
    return [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
