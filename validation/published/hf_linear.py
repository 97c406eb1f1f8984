"""The linear layers of a fine-tune: 4-bit as in bitsandbytes 0.43, and LoRA as in PEFT.

Owns what these layers allocate and keep. The packing itself is in ``bitsandbytes_parts``, which
imitates an older version; what has changed since is here.

Source: ``bitsandbytes/autograd/_functions.py`` (``MatMul4Bit``), ``bitsandbytes/nn/modules.py``
(``Linear4bit``) of 0.43.3; ``peft/tuners/lora/layer.py`` and ``bnb.py`` of 0.13.2.
"""

from typing import Any

import msgspec
import torch
from bitsandbytes_parts import dequantize, quantize
from torch import Tensor, nn

Moved = dict[nn.Parameter, nn.Parameter]
"""Parameters on the host and what they became on the device."""


class Lora(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The adapters.

    Attributes:
        rank: Width of the bottleneck.
        alpha: Scale times rank.
        dropout: On the adapter's input.
        targets: Last parts of the names of the layers that get one.
    """

    rank: int
    alpha: int
    dropout: float
    targets: tuple[str, ...]


class MatMul4Bit(torch.autograd.Function):  # type: ignore[misc]
    """A product with a 4-bit weight. Until 0.43.0 its input hangs on the node, needed or not."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: Tensor,
        packed: Tensor,
        bias: Tensor | None,
        layer: "Linear4bit",
    ) -> Tensor:
        """Multiply by the weight, made whole for the time of it."""
        out: Tensor = nn.functional.linear(x, dequantize(packed, layer.state).to(x.dtype), bias)
        ctx.state = layer.state
        ctx.packed = packed if any(ctx.needs_input_grad[:2]) else None
        ctx.x = x if layer.keeps_input and any(ctx.needs_input_grad[:2]) else None
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Multiply by the transposed weight, made whole once more."""
        needs_x, _, needs_bias, _ = ctx.needs_input_grad
        grad_bias = grad.sum(0, dtype=grad.dtype) if needs_bias else None
        grad_x = None
        if needs_x:
            grad_x = torch.matmul(grad, dequantize(ctx.packed, ctx.state).to(grad.dtype))
        return grad_x, None, grad_bias, None


class Linear4bit(nn.Module):
    """A linear layer with 4-bit weights, nested scales.

    The type of its first input, if fp32 or bf16, becomes the type in which it computes.
    """

    def __init__(
        self, layer: nn.Linear, *, codes: Tensor | None, keeps_input: bool = False
    ) -> None:
        """Quantize a layer that lies on its device in half precision.

        Args:
            layer: Whose weight is packed and whose bias is kept.
            codes: The table that all layers' scales share; None: scales are not quantized.
            keeps_input: Whether its input is kept for the backward pass, as until 0.43.0.
        """
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.keeps_input = keeps_input
        packed, self.state = quantize(layer.weight.data, double=codes is not None, codes=codes)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias = layer.bias
        self.compute_dtype = layer.weight.dtype
        self.is_compute_dtype_set = False

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to [..., in_features]."""
        if self.bias is not None and self.bias.dtype != x.dtype:
            self.bias.data = self.bias.data.to(x.dtype)
        if not self.is_compute_dtype_set and x.dtype != torch.float16:
            self.compute_dtype = x.dtype
        self.is_compute_dtype_set = True
        given_dtype = x.dtype
        x = x.to(self.compute_dtype)
        bias = None if self.bias is None else self.bias.to(self.compute_dtype)
        out: Tensor = MatMul4Bit.apply(x, self.weight, bias, self)
        return out.to(given_dtype)


class LoraLinear(nn.Module):
    """A frozen linear layer with an fp32 adapter beside it."""

    def __init__(self, base_layer: nn.Module, lora: Lora, *, dtype: torch.dtype) -> None:
        """Put an adapter beside a layer.

        Args:
            base_layer: A linear or 4-bit linear layer.
            lora: The adapter.
            dtype: Of its parameters.
        """
        super().__init__()
        self.base_layer = base_layer
        width_in, width_out = base_layer.in_features, base_layer.out_features
        device = next(base_layer.parameters()).device
        place = {"bias": False, "device": device, "dtype": dtype}
        self.lora_A = nn.Linear(width_in, lora.rank, **place)
        self.lora_B = nn.Linear(lora.rank, width_out, **place)
        self.dropout = nn.Dropout(lora.dropout) if lora.dropout > 0 else nn.Identity()
        self.scaling = lora.alpha / lora.rank

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer and the adapter to [..., in_features]."""
        if isinstance(self.base_layer, nn.Linear):
            return self._beside_plain(x)
        return self._beside_4bit(x)

    def _beside_plain(self, x: Tensor) -> Tensor:
        result = self.base_layer(x)
        given_dtype = result.dtype
        x = x.to(self.lora_A.weight.dtype)
        result = result + self.lora_B(self.lora_A(self.dropout(x))) * self.scaling
        out: Tensor = result.to(given_dtype)
        return out

    def _beside_4bit(self, x: Tensor) -> Tensor:
        result = self.base_layer(x)
        result = result.clone()
        converts = not torch.is_autocast_enabled(x.device.type)
        given_dtype = result.dtype
        if converts:
            x = x.to(self.lora_A.weight.dtype)
        output = self.lora_B(self.lora_A(self.dropout(x))) * self.scaling
        if converts:
            output = output.to(given_dtype)
        out: Tensor = result + output
        return out


def load(model: nn.Module, device: torch.device, *, codes: Tensor | None) -> None:
    """Move a model from the host to its device, tensor by tensor; tied ones stay tied.

    Args:
        model: Changed in place.
        device: Where to.
        codes: If given, all linear layers but the head are quantized; see ``Linear4bit``.
    """
    moved: Moved = {}
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if codes is not None and isinstance(child, nn.Linear) and name != "lm_head":
                place(child, device, {})
                setattr(module, name, Linear4bit(child, codes=codes))
                child.weight = None
    for module in model.modules():
        place(module, device, moved)


def place(module: nn.Module, device: torch.device, moved: Moved) -> None:
    """Move a module's own tensors; ``moved`` remembers parameters that other modules share."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        if parameter not in moved:
            there = parameter.detach().to(device)
            new = nn.Parameter(there, requires_grad=parameter.requires_grad)
            moved[parameter] = moved[new] = new
        setattr(module, name, moved[parameter])
    for name, buffer in list(module.named_buffers(recurse=False)):
        setattr(module, name, buffer.to(device))


def add_adapters(model: nn.Module, lora: Lora, *, dtype: torch.dtype) -> None:
    """Freeze a model and put adapters beside the layers that are named.

    Args:
        model: Changed in place.
        lora: The adapters.
        dtype: Of the adapters' parameters.
    """
    model.requires_grad_(False)
    for parent, name, layer in _linears(model):
        if name in lora.targets:
            setattr(parent, name, LoraLinear(layer, lora, dtype=dtype))


def _linears(model: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, (nn.Linear, Linear4bit))
    ]
