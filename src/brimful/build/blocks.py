"""The blocks of a model: what is checkpointed, sharded and dealt out to stages as one."""

from collections.abc import Iterator
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


def body_of(model: Any) -> Any:
    """Return what of a model is before its head, whatever its class calls it."""
    if model.base_model is not model:
        return model.base_model
    inner = [child for child in model.children() if isinstance(child, PreTrainedModel)]
    return inner[0] if inner else model


def decoder_blocks(model: nn.Module) -> list[nn.Module]:
    """List the decoder blocks in the order in which they run."""
    return list(dict.fromkeys(_blocks(model, {})))


def stacks_of(model: nn.Module) -> dict[nn.Module, list[nn.Module]]:
    """Return the lists that the decoder blocks stand in, each with its blocks, in order."""
    holds = {child: module for module in model.modules() for child in module.children()}
    found: dict[nn.Module, list[nn.Module]] = {}
    for block in decoder_blocks(model):
        found.setdefault(holds[block], []).append(block)
    return found


def _blocks(module: nn.Module, holds_more: dict[type, bool]) -> Iterator[nn.Module]:
    """Yield blocks below and including a module; those of one class hold others or none does.

    Args:
        module: Where to look.
        holds_more: Of each class of block that was seen: whether blocks lie in one of it.
    """
    kind = type(module)
    is_block = isinstance(module, GradientCheckpointingLayer)
    if is_block:
        yield module
        if not holds_more.get(kind, True):
            return
    inner = [block for child in module.children() for block in _blocks(child, holds_more)]
    if is_block:
        holds_more[kind] = bool(inner)
    yield from inner
