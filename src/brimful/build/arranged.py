"""A model of some of its own blocks in another order: what a sequence of kinds is traced on.

Blocks that the class made keep what it gave them, so that nobody has to know which field of which
configuration makes a block what it is.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig

from brimful.build.blocks import decoder_blocks, stacks_of


def arrange_blocks(skeleton: nn.Module, places: Sequence[int]) -> Callable[[], None]:
    """Put blocks in the place of all blocks: one that is named twice is copied.

    Each goes into the list that it stands in, of which there may be several (an encoder's first).

    ``places``: of the blocks that stay, in the order in which they are to run. Returns lets the
    configuration say of them what it says of each, once the model has its first weights, which some
    classes draw by it.
    """
    blocks = decoder_blocks(skeleton)
    stacks = stacks_of(skeleton)
    holds = {block: stack for stack, some in stacks.items() for block in some}
    taken = set[int]()
    chosen: dict[nn.Module, list[nn.Module]] = {stack: [] for stack in stacks}
    for place in places:
        block = blocks[place]
        chosen[holds[block]].append(_copied(block) if place in taken else block)
        taken.add(place)
    for stack, kept in chosen.items():
        for name in list(stack._modules):  # noqa: SLF001 - one may delete, but not by slices
            del stack._modules[name]  # noqa: SLF001
        for number, block in enumerate(kept):
            stack.add_module(str(number), block)
    configs = {id(m.config): m.config for m in skeleton.modules() if hasattr(m, "config")}

    def shorten() -> None:
        for config in configs.values():
            _shorten(config, len(blocks), places)

    return shorten


def _copied(block: nn.Module) -> nn.Module:
    """Copy a block, but not the configuration that its modules share with the model."""
    copies: dict[int, Any] = {
        id(value): value
        for module in block.modules()
        for value in vars(module).values()
        if isinstance(value, PretrainedConfig)
    }
    copies |= {id(p): _like(p) for p in block.parameters()}
    copied = copy.deepcopy(block, copies)
    for module in copied.modules():
        for p in module.parameters(recurse=False):
            if hasattr(p, "module"):  # bitsandbytes' tell theirs how they were quantised
                p.module = module
    return copied


def _like(parameter: nn.Parameter) -> nn.Parameter:
    """Make another parameter of the same kind, without bytes: bitsandbytes' own copy has some."""
    blank = torch.empty_like(parameter.data)
    made: nn.Parameter = torch.Tensor._make_subclass(  # noqa: SLF001 - as every such class does
        type(parameter), blank, parameter.requires_grad
    )
    vars(made).update(vars(parameter))
    return made


def _shorten(config: Any, num_blocks: int, places: Sequence[int]) -> None:
    """Let a configuration say of the blocks what it said of each.

    How many there are stays, where it can, as other widths are multiples of it in some classes.
    """
    if not isinstance(config, PretrainedConfig):
        return
    for field, value in list(vars(config).items()):
        if isinstance(value, list | tuple) and len(value) == num_blocks:
            vars(config)[field] = [value[place] for place in places]
    for depth in _DEPTHS:
        if vars(config).get(depth) == num_blocks < len(places):
            vars(config)[depth] = len(places)


_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
