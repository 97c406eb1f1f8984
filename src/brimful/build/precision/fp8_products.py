"""Products in fp8 where torchao's layer does not fit: of frozen weights, and of GPT-2's layers.

Factors are scaled and rounded by torchao, and multiplied by its tensors, as in its layer. That one
also multiplies for the gradient of a frozen weight, and keeps what it was given for that; here
neither is done. The weight of a ``Conv1D`` is [inputs, outputs].
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D


def product_of(layer: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the forward of a converted layer: torchao's own where that fits."""
    if layer.weight.requires_grad and not isinstance(layer, Conv1D):
        forward: Callable[[torch.Tensor], torch.Tensor] = layer.forward
        return forward
    return partial(_multiplied, layer)


def _multiplied(layer: Any, hidden: torch.Tensor) -> torch.Tensor:
    rule = _with_gradient() if layer.weight.requires_grad else _frozen()
    weight = layer.weight if isinstance(layer, Conv1D) else layer.weight.t()
    out: torch.Tensor = rule.apply(hidden, weight, layer.linear_mm_config, layer.config)
    return out if layer.bias is None else out + layer.bias.to(out.dtype)


def _with_gradient() -> Any:
    from torchao.float8.float8_linear import matmul_with_hp_or_float8_args

    return matmul_with_hp_or_float8_args


@cache
def _frozen() -> Any:
    """Return torchao's product without what is for the gradient of the weight."""
    from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
    from torchao.float8.float8_training_tensor import GemmInputRole

    whole = _with_gradient()

    class OfFrozen(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped to mypy
        @staticmethod
        def forward(ctx: Any, hidden: Any, weight: Any, products: Any, config: Any) -> Any:
            out = whole.forward(ctx, hidden, weight, products, config)
            ctx.save_for_backward(weight)  # in place of both factors
            return out

        @staticmethod
        def backward(ctx: Any, arrived: Any) -> Any:
            (weight,) = ctx.saved_tensors
            config, products = ctx.config, ctx.linear_mm_config
            narrow = hp_tensor_to_float8_dynamic(
                arrived.reshape(-1, arrived.shape[-1]),
                config.cast_config_grad_output.target_dtype,
                products,
                gemm_input_role=GemmInputRole.GRAD_OUTPUT,
            )
            held = hp_tensor_to_float8_dynamic(
                weight,
                config.cast_config_weight_for_grad_input.target_dtype,
                products,
                gemm_input_role=GemmInputRole.WEIGHT,
            )
            back = torch.mm(narrow, held.t())
            return back.reshape(*arrived.shape[:-1], -1), None, None, None

    return OfFrozen
