"""The blocks of a model: what is checkpointed, sharded and dealt out to stages as one."""

import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

_TEXT = "brimful_reads_text"
"""Attribute of the part of a model that text goes through, where there are others."""
_TOWER = "brimful_reads_no_text"
"""Attribute of a part of a body that no text goes through."""
_AS_ONE = "brimful_runs_as_one"
"""Attribute of a model whose body is no row of blocks: it is one unit, whatever it consists of."""
_SCORE = "score"
"""What a decoder that classifies calls its head."""
_PASSED_BY = re.compile(r"\b(layer|block)\w*\.forward\(")
"""In a class that does not call its blocks, but what they run, so that no hooks of theirs do."""


def body_of(model: Any) -> Any:
    """Return what of a model is before its head, whatever its class calls it.

    Of one that reads images or sounds too it is the part that reads text.
    """
    if (text := _text_of(model)) is not None:
        return text
    if model.base_model is not model:
        return model.base_model
    inner = [child for child in model.children() if isinstance(child, PreTrainedModel)]
    return inner[0] if inner else model


def embedding_of(model: Any) -> nn.Module:
    """Return what makes hidden states of words: the first table of a class that names none."""
    try:
        named: nn.Module = model.get_input_embeddings()
    except NotImplementedError:
        return next(each for each in model.modules() if isinstance(each, nn.Embedding))
    return named


def mark_text(model: Any) -> None:
    """Note which part reads text in a model that reads images or sounds too; freeze the others.

    No text goes through those, so that they get no gradients in any case.

    ``model``: on ``meta``, as its class made it.
    """
    text = model.config.get_text_config()
    if model.config.is_encoder_decoder:
        return
    parts = [m for m in model.modules() if isinstance(m, PreTrainedModel) and m is not model]
    own = [part for part in parts if part.config.model_type == text.model_type]
    if text is model.config:
        # Note what holds towers where the part that reads text is the body itself.
        towers = [part for part in parts if part not in own]
        for child in body_of(model).children() if towers else ():
            if any(module in towers for module in child.modules()):
                setattr(child, _TOWER, True)
    elif own:
        setattr(own[0].base_model, _TEXT, True)
    for parameter in idle_parameters(model).values():
        parameter.requires_grad_(requires_grad=False)


def _text_of(model: nn.Module) -> Any:
    """Return the part of a model that was noted; None: text goes through all of it."""
    return next((module for module in model.modules() if getattr(module, _TEXT, False)), None)


def idle_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that no text goes through, by their names."""
    named = model.named_parameters()
    if (text := _text_of(model)) is None:
        towers = [module for module in model.modules() if hasattr(module, _TOWER)]
        idle = {id(p) for tower in towers for p in tower.parameters()}
        return {name: p for name, p in named if id(p) in idle}
    top: Any = next(m for m in model.modules() if isinstance(m, PreTrainedModel))
    used = [text, top.get_output_embeddings(), getattr(top, _SCORE, None)]
    ids = {id(p) for part in used if part is not None for p in part.parameters()}
    return {name: p for name, p in named if id(p) not in ids}


def give_switch(model: Any) -> None:
    """Let blocks be checkpointed where transformers checkpoints none, if they are in one list.

    They are of one class of the model's own, and as many as its configuration says.

    ``model``: on ``meta``, as its class made it.
    """
    if any(isinstance(module, GradientCheckpointingLayer) for module in model.modules()):
        return
    home = type(model).__module__
    depth = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    lists = [
        list(module)
        for module in model.modules()
        if isinstance(module, nn.ModuleList) and len(module) == depth
    ]
    lists = [each for each in lists if {type(block) for block in each} == {type(each[0])}]
    lists = [each for each in lists if type(each[0]).__module__ == home]
    if len(lists) == 1 and _PASSED_BY.search(inspect.getsource(sys.modules[home])) is None:
        for block in lists[0]:
            kind: Any = type(block)
            block.__class__ = _switched(kind)


@cache
def _switched(block_class: type[nn.Module]) -> type[nn.Module]:
    """Make the class of blocks that can be checkpointed as others of transformers can."""
    fields = {"__module__": block_class.__module__}
    return type(block_class.__name__, (GradientCheckpointingLayer, block_class), fields)


def mark_unit(model: Any) -> None:
    """Note where no blocks run one after the other in their lists: the body is one unit then.

    So it is where parts of blocks stand in lists of their own, where blocks run many times or lie
    in each other, and where text goes through lists that are not an encoder's and a decoder's.

    ``model``: on ``meta``, as its class made it.
    """
    paths = {module: path for path, module in model.named_modules()}
    places = [
        (paths[stack], [paths[block].removeprefix(f"{paths[stack]}.") for block in blocks])
        for stack, blocks in stacks_of(model).items()
    ]
    is_in_row = all(each == [str(n) for n in range(len(each))] for _, each in places)
    most = 2 if model.config.is_encoder_decoder else 1
    if not places or not is_in_row or len(places) > most:
        setattr(model, _AS_ONE, True)


def runs_as_one(model: nn.Module) -> bool:
    """Whether a model's body is one unit."""
    return any(getattr(module, _AS_ONE, False) for module in model.modules())


def decoder_blocks(model: nn.Module) -> list[nn.Module]:
    """List the decoder blocks in the order in which they run; of a body that is one unit none."""
    return [] if runs_as_one(model) else parts_again(model)


def parts_again(model: nn.Module) -> list[nn.Module]:
    """List what of a model its class can recompute, each part once."""
    return list(dict.fromkeys(_blocks(_text_of(model) or model, {})))


def stacks_of(model: nn.Module) -> dict[nn.Module, list[nn.Module]]:
    """Return the lists that the decoder blocks stand in, each with its blocks, in order."""
    model = _text_of(model) or model
    holds = {child: module for module in model.modules() for child in module.children()}
    found: dict[nn.Module, list[nn.Module]] = {}
    for block in decoder_blocks(model):
        found.setdefault(holds[block], []).append(block)
    return found


def _blocks(module: nn.Module, holds_more: dict[type, bool]) -> Iterator[nn.Module]:
    """Yield blocks below and including a module; those of one class hold others or none does.

    ``holds_more``: of each class of block that was seen: whether blocks lie in one of it.
    """
    if hasattr(module, _TOWER):
        return
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
