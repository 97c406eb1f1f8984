"""The whole model where DeepSpeed's stage 3 has parted it, on the host.

Parameters are gathered one at a time, so that no device ever holds the model. What is copied is
what computes: of a 16-bit recipe the 16-bit parameters, not their masters, as the torch engine
hands over.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from brimful.build.deepspeed.engine import import_deepspeed
from brimful.build.program import Program

_PARTED = "ds_id"
"""What DeepSpeed's stage 3 puts on every parameter that it has parted."""


def is_parted(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether some of these are placeholders of parameters that DeepSpeed has parted."""
    return any(hasattr(tensor, _PARTED) for tensor in tensors)


def gathered(
    program: Program, named: Mapping[str, torch.Tensor], *, keep: bool
) -> dict[str, torch.Tensor]:
    """Gather parted tensors; every process must call this.

    ``named``: of the model's ``state_dict(keep_vars=True)``; a tied one under all its names.
    ``keep``: whether this process keeps what it sees. Returns whole tensors on the host under the
    same names; empty where they are not kept.
    """
    engine: Any = program.root
    engine.empty_partition_cache()  # what a forward pass has begun to gather for the next one
    gather: Any = import_deepspeed(program.device).zero.GatheredParameters
    kept: dict[int, torch.Tensor] = {}
    for tensor in named.values():
        if id(tensor) in kept:
            continue
        with gather([tensor] if hasattr(tensor, _PARTED) else []):
            whole = tensor.detach()
            kept[id(tensor)] = whole.cpu().clone() if keep else whole.new_empty(0)
    return {name: kept[id(tensor)] for name, tensor in named.items()} if keep else {}
