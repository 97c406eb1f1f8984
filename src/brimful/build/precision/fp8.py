"""The fp8 recipe: linear layers multiply in fp8 by torchao, over what bf16-mixed does.

Parameters, their gradients and the optimizer's state are fp32. Both factors of a product are scaled
by their largest number, one scale a tensor and made anew for every product, and rounded: inputs and
weights to e4m3, gradients of outputs to e5m2 (torchao's recipe ``tensorwise``). Everything else is
computed as in bf16-mixed: what is no linear layer, layers whose rows or columns are no multiple of
16, and the output layer. Where there are no units for fp8 torchao multiplies the rounded numbers in
fp32: that is how the recipe trains on a CPU.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from brimful.build.precision.kept import crosses_borders
from brimful.errors import UnsupportedError
from brimful.process.library_output import quiet_libraries

MULTIPLE = 16
"""Of rows and columns: what ``torch._scaled_mm`` takes."""


def convert(
    model: nn.Module, *, keeps: Callable[[str], bool], emulate: bool, pads: bool
) -> nn.Module:
    """Let linear layers multiply in fp8, in place; their parameters stay what they are.

    ``model``: on any device, before it is sharded. ``keeps``: tells by its path whether a layer is
    left as it is. ``emulate``: whether products are computed in fp32, of numbers rounded to fp8.
    ``pads``: whether tokens are filled up to a multiple of 16, for products that add over them.
    """
    float8 = require_torchao()
    config = float8.Float8LinearConfig(emulate=emulate, pad_inner_dim=pads)

    def is_converted(layer: nn.Module, path: str) -> bool:
        return type(layer) is nn.Linear and _fits(layer) and not keeps(path)

    float8.convert_to_float8_training(model, module_filter_fn=is_converted, config=config)
    layers = converted_layers(model)
    if not layers:
        raise UnsupportedError(
            f"precision=fp8 converts linear layers whose rows and columns are multiples of "
            f"{MULTIPLE}, but for the output layer, and this model has none; use bf16-mixed"
        )
    for layer in layers:
        _take_autocasts_type(layer)
    return model


def require_torchao() -> Any:
    """Return the package ``torchao.float8``."""
    quiet_libraries()
    try:
        from torchao import float8
    except ImportError as error:
        raise UnsupportedError(
            "precision=fp8 is torchao's, which is not installed; pip install 'brimful[fp8]', or "
            "use bf16-mixed"
        ) from error
    return float8


def converted_layers(model: nn.Module) -> list[nn.Module]:
    """List the layers that multiply in fp8, in the order of the model."""
    return [layer for layer in model.modules() if hasattr(layer, "linear_mm_config")]


def _fits(layer: nn.Linear) -> bool:
    return not (layer.in_features % MULTIPLE or layer.out_features % MULTIPLE)


def _take_autocasts_type(layer: Any) -> None:
    """Narrow what a layer is given as autocast would; torchao asks for CUDA's autocast only.

    Outside of borders (``kept.without_borders``) it is the plain layer that it was.
    """
    inside = layer.forward

    @wraps(inside)
    def forward(hidden: torch.Tensor) -> torch.Tensor:
        if not crosses_borders():
            return functional.linear(hidden, layer.weight, layer.bias)
        kind = hidden.device.type
        if torch.is_autocast_enabled(kind):
            hidden = hidden.to(torch.get_autocast_dtype(kind))
        out: torch.Tensor = inside(hidden)
        return out

    layer.forward = forward
