"""Regional ``torch.compile``: every block of a model is compiled by itself, and nothing else.

Blocks of a kind share one compilation. What is compiled is a block's own ``forward``, with its
checkpoint around it where it has one, so that the compiler chooses what is computed again; hooks of
the block (FSDP2's gathers, whoever listens) stay outside. torchtitan does the same: checkpoints
inside, the compiler around them, FSDP2 around both (``apply_ac``, ``apply_compile``,
``apply_fsdp``).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from brimful.build.blocks import decoder_blocks


def compile_blocks(model: nn.Module) -> None:
    """Compile each block the first time that it runs.

    ``model``: a ``transformers`` model, whose blocks are checkpointed already where they are to be.
    """
    for block in decoder_blocks(model):
        block.forward = torch.compile(_with_checkpoint(block))


def _with_checkpoint(block: Any) -> Callable[..., Any]:
    """Return what a block computes, its checkpoint inside of it; its class makes none then."""
    forward: Callable[..., Any] = block.forward
    if not block.gradient_checkpointing:
        return forward
    again = block._gradient_checkpointing_func  # noqa: SLF001 - the class's own switch
    block.gradient_checkpointing = False

    def run(*args: Any, **kwargs: Any) -> Any:
        return again(forward, *args, **kwargs)

    return run
