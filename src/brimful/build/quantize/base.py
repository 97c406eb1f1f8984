"""What every quantised format has: a linear layer, how it is filled, and what it stands for."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from brimful.build.own import keep_own
from brimful.errors import UnsupportedError


class Packed(NamedTuple):
    """What holds a weight in few bits."""

    shape: tuple[int, int]
    dtype: torch.dtype


class Format(NamedTuple):
    """A way to hold the weight of a linear layer in few bits.

    Attributes:
        linear: Makes the layer of (in features, out features, whether it has a bias, and the type
            it computes in) on ``meta``, where its weight still has the shape of the full one.
        fill: Quantises a weight, [out features, in features] on the layer's device and in the type
            it computes in, into the layer.
        dequantize: Returns the weight that the layer computes with, [out features, in features].
            Where it is sharded, all processes must call this.
        packed: Says of (out features, in features) the shape and type of what holds the weight;
            None: it lies where sharding does not see it.
        by_copies: Lets a filled layer compute with whatever stands in its weight's place, and save
            that for backward; None: it computes with what it keeps beside its weight.
    """

    linear: Callable[[int, int, bool, torch.dtype], nn.Linear]
    fill: Callable[[Any, torch.Tensor], None]
    dequantize: Callable[[Any], torch.Tensor]
    packed: Callable[[int, int], Packed] | None
    by_copies: Callable[[Any], None] | None = None


def require_bitsandbytes() -> Any:
    """Return the package ``bitsandbytes``."""
    try:
        import bitsandbytes
    except ImportError as error:
        raise UnsupportedError(
            "this quantised base is bitsandbytes', which is not installed; pip install "
            "'brimful[quant]', or use base=int8, which needs no package"
        ) from error
    return bitsandbytes


def hold(layer: Any, packed: torch.Tensor) -> None:
    """Let a layer hold its packed weight; this process's part of it where it is sharded.

    What is sharded may be of another type, whose numbers are then the packed bytes.
    """
    if isinstance(layer.weight, DTensor):
        keep_own(layer.weight, packed.flatten().view(layer.weight.dtype).view(layer.weight.shape))
    else:
        layer.weight = frozen(packed)


def frozen(data: torch.Tensor) -> nn.Parameter:
    """Wrap a tensor of any type as a parameter that does not train."""
    return nn.Parameter(data, requires_grad=False)
