"""``torch.compile`` of parts of a program: each block by itself, the loss, or the whole model.

Blocks of a kind share one compilation. What is compiled is a block's own ``forward``, with its
checkpoint around it where it has one, so that the compiler chooses what is computed again; hooks of
the block (FSDP2's gathers, whoever listens) stay outside. torchtitan does the same: checkpoints
inside, the compiler around them, FSDP2 around both (``apply_ac``, ``apply_compile``,
``apply_fsdp``). Its loss is compiled behind the model, which so reads logits in 16 bits where eager
PyTorch widens them first; a whole model is its body as one and its head with the loss as another.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from brimful.build.blocks import body_of, decoder_blocks
from brimful.build.loss import TokenLoss
from brimful.build.parallel.pieces import holding_pieces
from brimful.values.strategy import COMPILED, Strategy


def compile_model(model: nn.Module, strategy: Strategy) -> None:
    """Compile what a strategy says of a model's blocks, the first time that they run.

    ``model``: a ``transformers`` model, whose blocks are checkpointed already where they are to be.
    """
    parts = COMPILED[strategy.compile]
    if "blocks" in parts:
        for block in decoder_blocks(model):
            if (
                strategy.ep > 1
            ):  # whose graph ends where rows are sent, as a checkpoint in it may not
                block.forward = torch.compile(block.forward)
                block.forward = _with_checkpoint(block)
            else:
                block.forward = torch.compile(_with_checkpoint(block))
            if strategy.tp > 1:
                block.forward = _with_pieces(block)
    if "body" in parts:
        body = body_of(model)
        body.forward = torch.compile(body.forward)


def compile_loss(loss: nn.Module, strategy: Strategy) -> None:
    """Compile what a strategy says of a loss, behind the logits or with their head."""
    parts = COMPILED[strategy.compile]
    if not isinstance(loss, TokenLoss):
        if parts & {"loss", "head"}:
            loss.forward = torch.compile(loss.forward)
        return
    if "loss" in parts:
        loss.compile_entropy()
    if "head" in parts:
        loss.compile_whole()


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


def _with_pieces(block: Any) -> Callable[..., Any]:
    """Return what a block computes, given plain pieces of what is cut."""
    forward: Callable[..., Any] = block.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        with holding_pieces(block):
            return forward(*args, **kwargs)

    return run
