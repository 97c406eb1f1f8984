"""The sharding that torchtitan had before FSDP2: flat parameters, one for each block and the rest.

Knows nothing of published runs. How FSDP1 runs on a pretend GPU at all is ``fsdp1_moves``'.

Source: ``torchtrain/parallelisms/parallelize_llama.py`` of early 2024.
"""

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import BackwardPrefetch, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp import FullyShardedDataParallel as Flat


def shard_flat(model: Any, mesh: Any) -> Any:
    """Give every block, and what is left, a flat parameter sharded over the data-parallel axis.

    Args:
        model: The decoder, without memory.
        mesh: The data-parallel axis.

    Returns:
        The wrapped model, with memory.
    """
    wrap = partial(
        Flat,
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
        use_orig_params=True,
        device_mesh=mesh,
        device_id=torch.device("gpu", 0),
        param_init_fn=_give_memory,
    )
    for name, block in list(model.layers.items()):
        model.layers[name] = wrap(block)
    return wrap(model)


def _give_memory(module: nn.Module) -> None:
    module.to_empty(device="gpu:0", recurse=False)
