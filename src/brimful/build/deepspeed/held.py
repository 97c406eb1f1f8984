"""What DeepSpeed's engine holds on this process, for whoever measures it.

It puts everything into flat pieces of its own: of parameters in stage 3, of gradients in stages 2
and 3, of the fp32 numbers that are updated always, in an fp32 recipe too. Its fields have no public
names; where one is gone, what it held is counted among the transients.

Source: ``stage_1_and_2.py`` and ``stage3.py`` of DeepSpeed 0.19.8.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

_PART, _REDUCED = "ds_tensor", "averaged_gradients"
_FLAT = ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat")


def parameters(model: nn.Module) -> list[torch.Tensor]:
    """List the parameters that this process holds, whole or its part of them."""
    return [getattr(p, _PART, p) for p in model.parameters()]


def gradients(engine: Any, model: nn.Module) -> list[torch.Tensor]:
    """List the gradients that exist now: of parameters, reduced, and of flat pieces."""
    reduced = getattr(engine.optimizer, _REDUCED, {})
    found = [p.grad for p in (*model.parameters(), *flat_pieces(engine))]
    listed = [*found, *(g for group in reduced.values() for g in group or ())]
    return [gradient for gradient in listed if gradient is not None]


def flat_pieces(engine: Any) -> Iterator[torch.Tensor]:
    """List the fp32 numbers that the rule updates."""
    for name in _FLAT:
        yield from getattr(engine.optimizer, name, ())
