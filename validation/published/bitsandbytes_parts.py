"""What bitsandbytes allocates, as it was at 0.41: 4-bit linear layers and its optimizers' states.

Its kernels exist for real GPUs only. These parts allocate the same tensors in the same order and
keep the same ones for the backward pass; no arithmetic happens on a pretend GPU anyway.

Source: ``bitsandbytes/functional.py`` (``quantize_4bit``, ``dequantize_4bit``,
``quantize_blockwise``), ``bitsandbytes/autograd/_functions.py`` (``MatMul4Bit``),
``bitsandbytes/nn/modules.py`` (``Params4bit``, ``Linear4bit``),
``bitsandbytes/optim/optimizer.py``.
"""

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

Quantized = Literal["none", "nf4", "nf4-dq"]
BLOCK = 64
"""Weights that share one scale."""
NESTED_BLOCK = 256
"""Scales that share one scale of their own, with double quantization."""
LEVELS = 16
CODES = 256
MIN_PAGED_NUMEL = 100_000
"""A paged optimizer keeps the state of smaller parameters in ordinary memory."""
OPTIMIZER_BLOCK = 2048
MIN_8BIT_NUMEL = 4096
"""An 8-bit optimizer keeps the state of smaller parameters in 32 bits."""


class QuantState(NamedTuple):
    """What is kept beside packed weights to undo the quantization.

    Attributes:
        shape: Of the weights.
        dtype: In which the weights were quantized, and are given back.
        scales: One per block: fp32, or bytes with double quantization.
        nested: With double quantization the scales' scales, their codes and their mean.
        levels: The 16 values of a 4-bit code.
    """

    shape: torch.Size
    dtype: torch.dtype
    scales: Tensor
    nested: tuple[Tensor, Tensor, Tensor] | None
    levels: Tensor


def quantize(weight: Tensor, *, double: bool, codes: Tensor | None) -> tuple[Tensor, QuantState]:
    """Allocate what quantizing a weight on its device allocates.

    Args:
        weight: [out, in], on the device, in the type in which it is to be given back.
        double: Whether the scales are quantized too.
        codes: The table of 256 values that all layers share; needed with double quantization.

    Returns:
        Packed weights [numel / 2, 1] and what undoes it.
    """
    device, numel = weight.device, weight.numel()
    scales = torch.zeros((-(-numel // BLOCK),), dtype=torch.float32, device=device)
    packed = torch.zeros(((numel + 1) // 2, 1), dtype=torch.uint8, device=device)
    levels = torch.empty(LEVELS, dtype=torch.float32, device=device)
    nested = None
    if double:
        assert codes is not None
        mean = scales.mean()
        scales -= mean
        small = torch.zeros(
            (-(-scales.numel() // NESTED_BLOCK),), dtype=torch.float32, device=device
        )
        scales = torch.zeros_like(scales, dtype=torch.uint8)
        nested = (small, codes, mean)
    return packed, QuantState(weight.shape, weight.dtype, scales, nested, levels)


def dequantize(packed: Tensor, state: QuantState) -> Tensor:
    """Allocate the whole weight again, and the scales if they were quantized too."""
    if state.nested is not None:
        scales = torch.empty_like(state.scales, dtype=torch.float32)
        scales += state.nested[2]
    return torch.empty(state.shape, dtype=state.dtype, device=packed.device)


class MatMul4Bit(torch.autograd.Function):  # type: ignore[misc]
    """A product with a 4-bit weight.

    The input hangs on the node itself and not on a saved variable: it is kept although no gradient
    needs it, and dies with the node, not when the backward pass has passed.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, packed: Tensor, bias: Tensor | None, state: QuantState
    ) -> Tensor:
        """Multiply by the weight, made whole for the time of it."""
        weight = dequantize(packed, state).to(x.dtype)
        out: Tensor = nn.functional.linear(x, weight, bias)
        ctx.state = state
        ctx.tensors = (x, packed) if any(ctx.needs_input_grad[:2]) else (None, None)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Multiply by the transposed weight, made whole once more."""
        _, packed = ctx.tensors
        needs_x, _, needs_bias, _ = ctx.needs_input_grad
        grad_bias = grad.sum(0) if needs_bias else None
        grad_x = None
        if needs_x:
            grad_x = torch.matmul(grad, dequantize(packed, ctx.state).to(grad.dtype))
        return grad_x, None, grad_bias, None


class Linear4bit(nn.Module):
    """A linear layer with 4-bit weights.

    The weight goes to the device in fp16 and is quantized there; so it comes back in fp16 and is
    cast to the type of the input, two whole copies for a moment.
    """

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool, codes: Tensor | None
    ) -> None:
        """Make and quantize the weight; ``codes`` is the shared table of double quantization."""
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        whole = torch.empty(out_features, in_features, dtype=torch.float16)
        packed, self.state = quantize(whole, double=codes is not None, codes=codes)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to [..., in_features]."""
        out: Tensor = MatMul4Bit.apply(x, self.weight, self.bias, self.state)
        return out


class PagedAdamW(torch.optim.Optimizer):  # type: ignore[misc]
    """AdamW in 32 bits whose large states live in managed memory, outside the allocator."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        """Take the parameters that train."""
        super().__init__(parameters, {})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Make the states that are not paged, once."""
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is None or parameter in self.state:
                continue
            if parameter.numel() < MIN_PAGED_NUMEL:
                make_state(self.state[parameter], parameter, torch.float32)
            else:
                self.state[parameter] = {}


class Adam8bit(torch.optim.Optimizer):  # type: ignore[misc]
    """Adam whose states are bytes with one fp32 scale per 2048 of them."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        """Take the parameters that train."""
        super().__init__(parameters, {})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Make the states, once; the update itself is one kernel per parameter, in place."""
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is None or parameter in self.state:
                continue
            state = self.state[parameter]
            if parameter.numel() < MIN_8BIT_NUMEL:
                make_state(state, parameter, torch.float32)
                continue
            make_state(state, parameter, torch.uint8)
            self._add_scales(state, parameter)

    def _add_scales(self, state: dict[str, Tensor], parameter: Tensor) -> None:
        num_blocks = -(-parameter.numel() // OPTIMIZER_BLOCK)
        for name in ("absmax1", "absmax2"):
            state[name] = torch.zeros(num_blocks, dtype=torch.float32, device=parameter.device)
        if not hasattr(self, "_codes"):
            self._codes = [
                torch.empty(CODES, dtype=torch.float32, device=parameter.device) for _ in range(2)
            ]


def make_state(state: dict[str, Tensor], parameter: Tensor, dtype: torch.dtype) -> None:
    """Make the two moments of a parameter."""
    for name in ("state1", "state2"):
        state[name] = torch.zeros_like(parameter, dtype=dtype)
