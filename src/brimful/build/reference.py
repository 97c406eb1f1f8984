"""The model that a preference task compares with: the trained one, as it was before training.

Where it is kept is the strategy's affair (``strategy.Reference``) and changes no number: a second
model is a copy of the first one's base, in the same types; the trained one with its adapters
switched off is that base itself. It never gets gradients and is never saved.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import msgspec
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from brimful.build.adapters import base_name
from brimful.build.blocks import decoder_blocks
from brimful.build.model import allocate, materialize, skeleton_of
from brimful.values.job import QUANTIZED, Job
from brimful.values.strategy import Strategy

SECOND_MODELS = ("resident", "offloaded")
"""Kinds of reference that are a model of their own."""


class Second(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    """What a second model is asked through, as the first is through its root."""

    def __init__(self, model: nn.Module) -> None:
        """Keep the whole model."""
        super().__init__()
        self.model = model

    def forward(
        self,
        scores: Callable[[Any, nn.Module, Any, torch.Tensor], torch.Tensor],
        program: Any,
        batch: Any,
        labels_N: torch.Tensor,  # noqa: N803
    ) -> torch.Tensor:
        """Return what ``scores`` says of a batch under the model."""
        return scores(program, self.model, batch, labels_N)


def reference_skeleton(job: Job, strategy: Strategy) -> nn.Module | None:
    """Build the reference on the ``meta`` device; None where it is no model of its own."""
    if strategy.reference not in SECOND_MODELS:
        return None
    return skeleton_of(AutoModelForCausalLM, _base_alone(job), strategy)


def _base_alone(job: Job) -> Job:
    """Return the job of the base without adapters, held as beside them."""
    if job.adapter is None:
        return job
    bare = msgspec.structs.replace(job.adapter, targets=(), trained_modules=())
    return msgspec.structs.replace(job, adapter=bare)


def fill_reference(
    skeleton: nn.Module, model: nn.Module, job: Job, *, device: torch.device, host: torch.device
) -> nn.Module:
    """Give the reference memory and the weights of the model that is about to be trained.

    ``model``: with its first weights. ``job``: says whether the base is quantised: then it is made
    anew, from the same weights or the same seed. ``host``: where it is kept; another one than
    ``device`` where it is offloaded.
    """
    if job.adapter is not None and job.adapter.base in QUANTIZED:
        reference = materialize(skeleton, device=device, job=_base_alone(job))
    else:
        allocate(skeleton, host)
        _copy(model, skeleton)
        reference = skeleton
    for module in reference.modules():
        module._buffers = {  # noqa: SLF001 - buffers are small, and shared by all blocks
            name: None if buffer is None else buffer.to(device)
            for name, buffer in module._buffers.items()  # noqa: SLF001
        }
    return reference.requires_grad_(False).eval()


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def _copy(model: nn.Module, reference: nn.Module) -> None:
    """Copy the base of a model, adapted or not, name by name."""
    named = chain(model.named_parameters(), model.named_buffers())
    sources = {base_name(name): tensor for name, tensor in named}
    for name, tensor in chain(reference.named_parameters(), reference.named_buffers()):
        tensor.copy_(sources[name])


def offload(reference: nn.Module, device: torch.device) -> nn.Module:
    """Keep a reference where it is, and a part of it on the device while that part runs.

    A part is a block, or a module outside of them with parameters of its own; the output layer,
    which may run many times, is its caller's (``output_layer``). On a CPU the device is the host,
    and a part is copied all the same: what runs is what is counted.
    """
    if device.type == "cuda":
        for parameter in reference.parameters():
            parameter.data = parameter.data.pin_memory()
    setattr(reference, _AWAY, device)
    for part in _parts(reference):
        part.register_forward_pre_hook(partial(_fetch, device))
        part.register_forward_hook(_drop, always_call=True)
    return reference


def _parts(reference: nn.Module) -> Iterator[nn.Module]:
    blocks = decoder_blocks(reference)
    inside = {id(module) for block in blocks for module in block.modules()}
    yield from blocks
    inside.add(id(_head(reference)))
    for module in reference.modules():
        if id(module) not in inside and any(True for _ in module.parameters(recurse=False)):
            yield module


_AWAY = "brimful_away"
"""Attribute of a reference that is offloaded: the device on which it computes."""
_HOME = "brimful_home"
"""Attribute of a part that is on the device: where its parameters belong."""


def _fetch(device: torch.device, part: nn.Module, _args: Any) -> None:
    home: list[tuple[Any, str, nn.Parameter]] = []
    for module in part.modules():
        for name, parameter in module._parameters.items():  # noqa: SLF001
            if parameter is not None:
                home.append((module, name, parameter))
    for module, name, parameter in home:
        copied = parameter.detach().to(device, non_blocking=True, copy=True)
        module._parameters[name] = nn.Parameter(copied, requires_grad=False)  # noqa: SLF001
    setattr(part, _HOME, home)


def _drop(part: nn.Module, _args: Any, _output: Any) -> None:
    for module, name, parameter in getattr(part, _HOME, ()):
        module._parameters[name] = parameter  # noqa: SLF001
    setattr(part, _HOME, ())


def state_of(reference: nn.Module) -> list[torch.Tensor]:
    """List what a reference holds."""
    return [*reference.parameters(), *reference.buffers()]


@contextmanager
def output_layer(reference: nn.Module) -> Iterator[nn.Module]:
    """Have a reference's output layer on the device inside the block."""
    head = _head(reference)
    device = getattr(reference, _AWAY, None)
    if device is not None:
        _fetch(device, head, None)
    try:
        yield head
    finally:
        _drop(head, None, None)


def _head(reference: Any) -> nn.Module:
    head: nn.Module = reference.get_output_embeddings()
    return head


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[nn.Module]:
    """Let a model be its base inside the block: adapters off, and what trains beside them too.

    Nothing is recomputed meanwhile, as nothing is kept for a backward pass.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    adapted = [
        m for m in model.modules() if isinstance(m, BaseTunerLayer | AuxiliaryTrainingWrapper)
    ]
    was_training = model.training
    model.eval()
    for module in adapted:
        module._disable_adapters = True  # noqa: SLF001 - ``enable_adapters`` freezes them as well
    try:
        yield model
    finally:
        for module in adapted:
            module._disable_adapters = False  # noqa: SLF001
        model.train(was_training)
