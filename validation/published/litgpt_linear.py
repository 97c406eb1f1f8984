"""The linear layers that litgpt's fine-tuning methods put into the model.

Source: ``lit_gpt/lora.py``, ``lit_gpt/adapter_v2.py`` of Lightning-AI/litgpt.
"""

from typing import Any, Literal

import msgspec
import torch
from bitsandbytes_parts import CODES, Linear4bit, Quantized
from litgpt_model import Dims, Where
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

MethodName = Literal["full", "lora", "adapter", "adapter_v2"]
Target = Literal["query", "key", "value", "projection", "mlp", "head"]
_QKV: tuple[Target, ...] = ("query", "key", "value")
TRAINED = {
    "lora": ("lora_",),
    "adapter": ("adapter_wte", "gating_factor"),
    "adapter_v2": (
        "adapter_wte", "gating_factor", "adapter_scale", "adapter_bias", "norm_1", "norm_2", "ln_f",
    ),
}  # fmt: skip
"""Parts of the names of the parameters that each method trains; the rest is frozen."""


class Lora(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """LoRA's settings; litgpt's defaults.

    Attributes:
        rank: Width of the low-rank product.
        alpha: Its scale, times rank.
        dropout: On its input.
        targets: Which linear layers have it.
    """

    rank: int = 8
    alpha: int = 16
    dropout: float = 0.05
    targets: tuple[Target, ...] = ("query", "value")


class LoRALinear(nn.Module):
    """A linear layer beside which a low-rank product runs."""

    def __init__(self, linear: nn.Module, lora: Lora) -> None:
        """Wrap a layer."""
        super().__init__()
        self.linear, self.scaling = linear, lora.alpha / lora.rank
        self.lora_dropout = nn.Dropout(lora.dropout)
        self.lora_A = nn.Parameter(torch.zeros(lora.rank, linear.in_features))
        self.lora_B = nn.Parameter(torch.zeros(linear.out_features, lora.rank))

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to [..., in_features]."""
        pretrained = self.linear(x)
        low = self.lora_dropout(x) @ self.lora_A.transpose(0, 1) @ self.lora_B.transpose(0, 1)
        out: Tensor = pretrained + low * self.scaling
        return out


class LoRAQKVLinear(nn.Module):
    """The fused query, key and value product with a low-rank product for some of the three.

    Their outputs are made by a grouped convolution and put at their places in a tensor of zeros.
    """

    def __init__(self, linear: nn.Module, lora: Lora, dims: Dims) -> None:
        """Wrap a layer."""
        super().__init__()
        self.linear, self.scaling = linear, lora.alpha / lora.rank
        self.grouped = dims.num_groups != dims.num_heads
        group_width = dims.num_groups * dims.head_width
        widths = (dims.num_heads * dims.head_width, group_width, group_width)
        self.widths = [w for w, t in zip(widths, _QKV, strict=True) if t in lora.targets]
        self.covers_all = len(self.widths) == len(_QKV)
        self.lora_dropout = nn.Dropout(lora.dropout)
        self.lora_A = nn.Parameter(torch.zeros(lora.rank * len(self.widths), linear.in_features))
        self.lora_B = nn.Parameter(torch.zeros(sum(self.widths), lora.rank))

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to [B, T, C]."""
        pretrained = self.linear(x)
        after_a = F.linear(self.lora_dropout(x), self.lora_A).transpose(-2, -1)
        after_b = self._conv(after_a, self.lora_B.unsqueeze(-1)).transpose(-2, -1)
        out: Tensor = pretrained + self._zero_pad(after_b) * self.scaling
        return out

    def _conv(self, x: Tensor, weight: Tensor) -> Tensor:
        num = len(self.widths)
        if not self.grouped:
            return F.conv1d(x, weight, groups=num)
        parts = zip(x.chunk(num, dim=1), weight.split(self.widths), strict=True)
        return torch.cat([F.conv1d(a, b) for a, b in parts], dim=1)

    def _zero_pad(self, x: Tensor) -> Tensor:
        if self.covers_all:
            return x
        x = x.transpose(0, 1)
        width = self.linear.out_features
        zeros = x.new_zeros((*x.shape[:-1], width)).view(-1, width)
        index = torch.empty(sum(self.widths), dtype=torch.int64, device=x.device)
        out = zeros.index_copy(1, index, x.reshape(-1, sum(self.widths)))
        return out.view((*x.shape[:-1], width)).transpose(0, 1)


class AdapterV2Linear(nn.Module):
    """A linear layer with a learnt bias and a learnt scale behind."""

    def __init__(self, linear: nn.Module) -> None:
        """Wrap a layer."""
        super().__init__()
        self.linear = linear
        self.adapter_bias = nn.Parameter(torch.zeros(linear.out_features))
        self.adapter_scale = nn.Parameter(torch.ones(linear.out_features))

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to [..., in_features]."""
        out: Tensor = self.adapter_scale * (self.linear(x) + self.adapter_bias)
        return out


class Linears:
    """Makes the linear layers of one method, quantized or not."""

    def __init__(self, dims: Dims, method: MethodName, lora: Lora, quantized: Quantized) -> None:
        """Remember what to make; double quantization shares one table of codes."""
        self.dims, self.method, self.lora, self.quantized = dims, method, lora, quantized
        self.codes = torch.empty(CODES, dtype=torch.float32) if quantized == "nf4-dq" else None

    def __call__(self, where: Where, in_features: int, out_features: int, *, bias: bool) -> Any:
        """Make the layer that stands at a place."""
        linear = self._plain(in_features, out_features, bias=bias)
        if self.method == "adapter_v2":
            return AdapterV2Linear(linear)
        if self.method != "lora":
            return linear
        if where == "qkv":
            has_any = any(t in self.lora.targets for t in _QKV)
            return LoRAQKVLinear(linear, self.lora, self.dims) if has_any else linear
        return LoRALinear(linear, self.lora) if where in self.lora.targets else linear

    def _plain(self, in_features: int, out_features: int, *, bias: bool) -> nn.Module:
        if self.quantized == "none":
            return nn.Linear(in_features, out_features, bias=bias)
        return Linear4bit(in_features, out_features, bias=bias, codes=self.codes)


def freeze(model: nn.Module, method: MethodName) -> list[nn.Parameter]:
    """Leave only the parameters trainable that the method trains, and return them."""
    parts = TRAINED.get(method)
    for name, parameter in model.named_parameters():
        if parts is not None:
            parameter.requires_grad = any(part in name for part in parts)
    return [p for p in model.parameters() if p.requires_grad]
