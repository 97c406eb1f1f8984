"""The model: built on no device, moved to one, then initialised, in the same way real or fake."""

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig

from brimful.build.attention import IMPLEMENTATION
from brimful.build.precision import PARAMETER_DTYPE
from brimful.job import Job
from brimful.strategy import Strategy

_DROPOUTS = ("attention_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop")


def skeleton_of(auto_class: Any, job: Job, strategy: Strategy) -> nn.Module:
    """Build a ``transformers`` model on the ``meta`` device: shapes and code, no bytes.

    Dropout is off, whatever the configuration says: exactness across micro-batches needs it.

    Args:
        auto_class: ``AutoModelForCausalLM`` or another of its kind.
        job: Says which model, and in which type its parameters are held.
        strategy: Says how it attends.
    """
    config = AutoConfig.for_model(job.model.model_type, **job.model.hf_config)
    for name in _DROPOUTS:
        if hasattr(config, name):
            setattr(config, name, 0.0)
    config.use_cache = False
    with torch.device("meta"):
        return auto_class.from_config(
            config,
            dtype=PARAMETER_DTYPE[job.precision],
            attn_implementation=IMPLEMENTATION[strategy.attention],
        )


def materialize(skeleton: nn.Module, *, device: torch.device, seed: int) -> nn.Module:
    """Give the skeleton memory on ``device`` and random weights, in place.

    Args:
        skeleton: Built on ``meta``.
        device: Where it shall live; under a fake mode its bytes are pretend.
        seed: Seed of the weights.

    Returns:
        The same module.
    """
    torch.manual_seed(seed)
    _allocate(skeleton, device)
    skeleton.initialize_weights()
    return skeleton.train()


def _allocate(skeleton: nn.Module, device: torch.device) -> None:
    """Replace every meta tensor by an empty one on ``device``, a shared one by one.

    ``Module.to_empty`` would allocate tied weights twice.
    """
    made: dict[int, torch.Tensor] = {}
    for module in skeleton.modules():
        for tensors in (module._parameters, module._buffers):  # noqa: SLF001
            for name, tensor in tensors.items():
                if tensor is not None:
                    if id(tensor) not in made:
                        made[id(tensor)] = _empty_like(tensor, device)
                    tensors[name] = made[id(tensor)]


def _empty_like(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    empty = torch.empty_like(tensor, device=device)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty
