"""The fp8 recipe: linear layers multiply in fp8 by torchao, over what bf16-mixed does.

Parameters, their gradients and the optimizer's state are fp32. Both factors of a product are scaled
by their largest number, one scale a tensor and made anew for every product, and rounded: inputs and
weights to e4m3, gradients of outputs to e5m2 (torchao's recipe ``tensorwise``). Everything else is
computed as in bf16-mixed: what is no linear layer, layers whose rows or columns are no multiple of
16, adapters, and the output layer. Where there are no units for fp8 torchao multiplies the rounded
numbers in fp32: that is how the recipe trains on a CPU.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from brimful.build.precision.fp8_products import product_of
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
        return type(layer) in {nn.Linear, Conv1D} and _fits(layer) and not keeps(path)

    float8.convert_to_float8_training(model, module_filter_fn=is_converted, config=config)
    for path, layer in model.named_modules():
        if isinstance(layer, Conv1D) and is_converted(layer, path):  # which torchao leaves alone
            _take_settings(layer, config)
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


def _fits(layer: Any) -> bool:
    return not any(size % MULTIPLE for size in layer.weight.shape)


def _take_settings(layer: Any, config: Any) -> None:
    """Give a layer the settings of products that torchao's have."""
    from torchao.float8.float8_linear import Float8Linear

    with torch.device("meta"):
        like = Float8Linear(MULTIPLE, MULTIPLE, bias=False, config=config)
    layer.linear_mm_config, layer.config = like.linear_mm_config, config


def _take_autocasts_type(layer: Any) -> None:
    """Narrow what a layer is given as autocast would; torchao asks for CUDA's autocast only.

    Outside of borders (``kept.without_borders``) it is the plain layer that it was.
    """
    inside = product_of(layer)
    plain = type(layer).forward if isinstance(layer, Conv1D) else nn.Linear.forward

    @wraps(plain)
    def forward(hidden: torch.Tensor) -> torch.Tensor:
        if not crosses_borders():
            outside: torch.Tensor = plain(layer, hidden)
            return outside
        kind = hidden.device.type
        if torch.is_autocast_enabled(kind):
            hidden = hidden.to(torch.get_autocast_dtype(kind))
        out: torch.Tensor = inside(hidden)
        return out

    layer.forward = forward
