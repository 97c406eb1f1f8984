"""Linear layers that compute with integers by torchao: rounded as they train, then for real.

``prepare`` swaps layers for torchao's ``FakeQuantizedLinear``: parameters, their gradients and the
optimizer's state stay what the recipe makes them, and each forward pass rounds weights and inputs
to the numbers that the integers will stand for; gradients pass through the rounding unchanged.
``convert`` makes these integers. Both are steps of torchao's ``QATConfig`` over one configuration,
so that what was trained is what is kept. The output layer, embeddings, experts and what a recipe
keeps in fp32 stay as they are.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from brimful.build.adapters import output_layers, paths_of
from brimful.build.precision.kept import crosses_borders, find_kept
from brimful.build.quantize.torchao import config_of, require_torchao
from brimful.errors import UnsupportedError
from brimful.techniques.quantization import Quantization, check_width
from brimful.values.job import QAT, Job


def prepare_qat(model: nn.Module, job: Job) -> nn.Module:
    """Let linear layers round as they train, in place, where the job's method is ``qat``.

    ``model``: on ``meta``, before it is sharded. ``job``: one of another method leaves the model as
    it is. Raises UnsupportedError: torchao is not installed, or the model has no such layer. Raises
    InputError: the group size does not divide a layer's width.
    """
    if job.quantization is None:
        return model
    left = left_whole(model, job.keep_fp32)
    return prepare(model, job.quantization, keeps=left.__contains__)


def left_whole(model: nn.Module, keep_fp32: tuple[str, ...] = ()) -> set[str]:
    """Return the paths of linear layers that are never rounded.

    They are the output layer, what is named to stay in fp32, and what its class keeps in fp32
    beside weights of 16 bits, which transformers leaves whole too.
    """
    kept = [*find_kept(model, keep_fp32)]
    patterns = getattr(model, "_keep_in_fp32_modules", None) or ()
    return {
        path
        for path, layer in model.named_modules()
        if isinstance(layer, nn.Linear)
        and (
            path in paths_of(model, output_layers(model))
            or any(path == whole or path.startswith(f"{whole}.") for whole in kept)
            or any(part in patterns for part in path.split("."))
        )
    }


def prepare(
    model: nn.Module, quantization: Quantization, *, keeps: Callable[[str], bool]
) -> nn.Module:
    """Let linear layers round what they compute with, in place.

    ``keeps``: tells by its path whether a layer is left as it is. Raises InputError: the group size
    does not divide a layer's width.
    """
    chosen = {
        path: layer
        for path, layer in model.named_modules()
        if type(layer) is nn.Linear and not keeps(path)
    }
    if not chosen:
        raise UnsupportedError(
            f"method={QAT} rounds linear layers but for the output layer, and this model has none; "
            f"use method=full"
        )
    for path, layer in chosen.items():
        check_width(f"the width of {path}", layer.in_features, group_size=quantization.group_size)
    torchao = require_torchao()
    config = torchao.qat.QATConfig(config_of(quantization), step="prepare")
    torchao.quantize_(model, config, filter_fn=lambda _layer, path: path in chosen)
    for layer in rounded_layers(model).values():
        _round_within_borders(layer)
    return model


def _round_within_borders(layer: Any) -> None:
    """Let a layer be the plain one that it was in the wide run that numbers are compared with."""
    inside = layer.forward

    @wraps(inside)
    def forward(hidden: torch.Tensor) -> torch.Tensor:
        if not crosses_borders():
            return functional.linear(hidden, layer.weight, layer.bias)
        out: torch.Tensor = inside(hidden)
        return out

    layer.forward = forward


def convert(model: nn.Module, quantization: Quantization) -> nn.Module:
    """Turn prepared layers into ones that hold integers, in place.

    ``model``: of ``prepare``, with its weights. Returns the same model, without gradients. Raises
    UnsupportedError: torchao is not installed.
    """
    torchao = require_torchao()
    model.requires_grad_(requires_grad=False)
    torchao.quantize_(model, torchao.qat.QATConfig(config_of(quantization), step="convert"))
    return model


def rounded_layers(model: nn.Module) -> dict[str, Any]:
    """Return the layers of ``prepare``, by their paths."""
    return {
        path: layer
        for path, layer in model.named_modules()
        if hasattr(layer, "weight_fake_quantizer")
    }
