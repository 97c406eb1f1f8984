"""Casting parameters and what comes into a block, as FSDP2 does where it computes in 16 bits."""

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from brimful.build.blocks import decoder_blocks


def narrow_inputs(model: nn.Module, dtype: torch.dtype) -> None:
    """Let every block cast its floating inputs, ``cast_forward_inputs`` of FSDP2.

    All parameters are in the type that they are gathered in, whatever their class keeps them in.
    """
    for parameter in model.parameters():
        if parameter.dtype == torch.float32:
            parameter.data = parameter.data.to(dtype)
    for block in decoder_blocks(model):
        block.register_forward_pre_hook(partial(_narrowed, dtype), prepend=True, with_kwargs=True)


def _narrowed(dtype: torch.dtype, _block: nn.Module, args: Any, kwargs: Any) -> Any:
    def cast(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype) if x.is_floating_point() else x

    return pytree.tree_map_only(torch.Tensor, cast, (args, kwargs))
