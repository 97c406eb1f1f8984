"""The decoder that litgpt trains, as it was in October 2023 and since, in plain PyTorch.

Owns the order of operations, for on it depends what autograd keeps. The linear layers come from
outside (``litgpt_linear.py``): they are what the fine-tuning methods differ in.

Shape suffixes: B batch, T tokens, C model width, H heads, G groups of heads, S head width.

Source: ``lit_gpt/model.py``, ``lit_gpt/rmsnorm.py``, ``lit_gpt/adapter.py`` of Lightning-AI/litgpt.
"""

import math
from typing import Any, Literal, Protocol

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

Where = Literal["qkv", "projection", "mlp", "head"]
ADAPTER_PROMPT = 10
ADAPTER_START = 2


class Dims(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """litgpt's table entry of a model, its defaults filled in.

    Attributes:
        name: The table's name.
        block_size: Longest sequence.
        vocab: Rows of embedding and head, padding included.
        num_layers: Blocks.
        num_heads: Query heads.
        num_groups: Key-value heads.
        width: Model width.
        head_width: Width of a head.
        ffn_width: Width inside the feed-forward.
        rotary_share: Share of a head that is rotated.
        parallel_residual: Whether attention and feed-forward read the same input.
        shared_norm: Whether they share one norm too.
        bias: Whether the linear layers inside blocks have one.
        head_bias: Whether the head has one.
        norm: Which norm.
        mlp: Which feed-forward.
        unit_offset: Whether an RMS norm multiplies by 1 + weight, and embeddings are scaled.
        post_norms: Whether attention and feed-forward are normed again behind.
        attention_softcap: Bound on scores, 0 for none: then attention is written out.
        final_softcap: Bound on logits, 0 for none.
    """

    name: str
    block_size: int
    vocab: int
    num_layers: int
    num_heads: int
    num_groups: int
    width: int
    head_width: int
    ffn_width: int
    rotary_share: float = 1.0
    parallel_residual: bool = False
    shared_norm: bool = False
    bias: bool = False
    head_bias: bool = False
    norm: Literal["rms", "layer"] = "rms"
    mlp: Literal["swiglu", "gelu", "geglu"] = "swiglu"
    unit_offset: bool = False
    post_norms: bool = False
    attention_softcap: float = 0.0
    final_softcap: float = 0.0

    @property
    def rotary_width(self) -> int:
        """How much of a head is rotated."""
        return int(self.rotary_share * self.head_width)

    @property
    def qkv_width(self) -> int:
        """Outputs of the fused query, key and value product."""
        return (self.num_heads + 2 * self.num_groups) * self.head_width


class MakeLinear(Protocol):
    """Makes the linear layer that stands at a place of the model."""

    def __call__(self, where: Where, in_features: int, out_features: int, *, bias: bool) -> Any:
        """Return the module."""


class RMSNorm(nn.Module):
    """Root mean square norm, computed in fp32.

    Before 2024 the weight was multiplied in fp32 and the product cast; since then the normed input
    is cast first.
    """

    def __init__(self, dims: Dims, *, casts_product: bool) -> None:
        """Make the weight."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dims.width))
        self.offset, self.casts_product = dims.unit_offset, casts_product

    def forward(self, x: Tensor) -> Tensor:
        """Norm [..., C]."""
        dtype = x.dtype
        x = x.float()
        mean = torch.mean(x * x, dim=-1, keepdim=True)
        normed = x * torch.rsqrt(mean + 1e-5)
        if self.casts_product:
            return (self.weight * normed).to(dtype=dtype)
        normed = normed.to(dtype=dtype)
        return normed * (1 + self.weight) if self.offset else normed * self.weight


def norm(dims: Dims, *, casts_product: bool) -> nn.Module:
    """Make the model's kind of norm."""
    if dims.norm == "rms":
        return RMSNorm(dims, casts_product=casts_product)
    return nn.LayerNorm(dims.width)


def rope_tables(length: int, width: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, [length, width] each."""
    theta = 1.0 / (10000 ** (torch.arange(0, width, 2).float() / width))
    angles = torch.outer(torch.arange(length) / 1, theta).repeat(1, 2)
    return torch.cos(angles), torch.sin(angles)


def rotate(x_BHTS: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # noqa: N803
    """Rotate heads by their positions."""
    half = x_BHTS.size(-1) // 2
    x1, x2 = x_BHTS[..., :half], x_BHTS[..., half:]
    rotated = torch.cat((-x2, x1), dim=-1)
    roped = (x_BHTS * cos) + (rotated * sin)
    return roped.to(dtype=x_BHTS.dtype)


class Attention(nn.Module):
    """Attention with fused query, key and value, and with LLaMA-Adapter's prompt if asked."""

    def __init__(self, dims: Dims, linear: MakeLinear, *, has_prompt: bool) -> None:
        """Make the layers."""
        super().__init__()
        self.dims, self.has_prompt = dims, has_prompt
        self.attn = linear("qkv", dims.width, dims.qkv_width, bias=dims.bias)
        inside = dims.num_heads * dims.head_width
        self.proj = linear("projection", inside, dims.width, bias=dims.bias)
        if has_prompt:
            self.adapter_wte = nn.Embedding(ADAPTER_PROMPT, dims.width)
            self.gating_factor = nn.Parameter(torch.zeros(1, 1, dims.num_heads, 1))

    def forward(self, x_BTC: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # noqa: N803
        """Attend within [B, T, C]."""
        d = self.dims
        batch, length, _ = x_BTC.size()
        q, k, v = self._heads(self.attn(x_BTC), batch, length)
        n = d.rotary_width
        q_roped, k_roped = rotate(q[..., :n], cos, sin), rotate(k[..., :n], cos, sin)
        q = torch.cat((q_roped, q[..., n:]), dim=-1)
        k = torch.cat((k_roped, k[..., n:]), dim=-1)
        y = self._attend(q, k, v)
        if self.has_prompt:
            y = self._add_prompt(y, q)
        out: Tensor = self.proj(y.reshape(batch, length, d.num_heads * d.head_width))
        return out

    def _heads(self, qkv: Tensor, batch: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
        d = self.dims
        per_group = d.num_heads // d.num_groups
        qkv = qkv.view(batch, length, d.num_groups, per_group + 2, d.head_width)
        q, k, v = qkv.permute(0, 2, 3, 1, 4).split((per_group, 1, 1), dim=2)
        if d.num_groups != d.num_heads:
            k = k.expand(batch, d.num_groups, per_group, length, d.head_width)
            v = v.expand(batch, d.num_groups, per_group, length, d.head_width)
        return tuple(x.reshape(batch, -1, length, d.head_width) for x in (q, k, v))  # type: ignore[return-value]

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        d = self.dims
        scale = 1.0 / math.sqrt(d.head_width)
        if d.attention_softcap:
            return _written_out(q, k, v, scale=scale, softcap=d.attention_softcap).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0, scale=scale, is_causal=True)
        return y.transpose(1, 2)

    def _add_prompt(self, y: Tensor, q: Tensor) -> Tensor:
        """Attend to the learnt prompt as well, through the same query, key and value product."""
        d = self.dims
        per_group = d.num_heads // d.num_groups
        prefix = self.adapter_wte.weight.reshape(1, ADAPTER_PROMPT, d.width)
        qkv = self.attn(prefix).view(1, ADAPTER_PROMPT, d.num_groups, per_group + 2, d.head_width)
        _, k, v = qkv.permute(0, 2, 3, 1, 4).split((per_group, 1, 1), dim=2)
        if d.num_groups != 1:
            k, v = (x.repeat_interleave(per_group, dim=2) for x in (k, v))
        k, v = (x.reshape(1, -1, ADAPTER_PROMPT, d.head_width) for x in (k, v))
        mask = torch.ones(q.size(2), ADAPTER_PROMPT, dtype=torch.bool, device=q.device)
        scale = 1.0 / math.sqrt(d.head_width)
        ay = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).transpose(1, 2)
        out: Tensor = y + self.gating_factor * ay
        return out


def _written_out(q: Tensor, k: Tensor, v: Tensor, *, scale: float, softcap: float) -> Tensor:
    """Attend with bounded scores, which no fused kernel of the time could."""
    length = q.size(2)
    mask = torch.ones(length, length, dtype=q.dtype, device=q.device).triu(diagonal=1)
    mask.masked_fill_(mask.bool(), torch.finfo(q.dtype).min)
    scores = q @ k.mT * scale
    scores = torch.tanh(scores / softcap) * softcap
    scores = scores + mask
    scores = F.softmax(scores, dim=-1, dtype=torch.float).to(dtype=q.dtype)
    return scores @ v


class GeluMLP(nn.Module):
    """The feed-forward of GPT-NeoX."""

    def __init__(self, dims: Dims, linear: MakeLinear) -> None:
        """Make the layers."""
        super().__init__()
        self.fc = linear("mlp", dims.width, dims.ffn_width, bias=dims.bias)
        self.proj = linear("mlp", dims.ffn_width, dims.width, bias=dims.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to [..., C]."""
        out: Tensor = self.proj(F.gelu(self.fc(x)))
        return out


class GatedMLP(nn.Module):
    """The feed-forward of Llama, and of Gemma with another activation."""

    def __init__(self, dims: Dims, linear: MakeLinear) -> None:
        """Make the layers."""
        super().__init__()
        self.fc_1 = linear("mlp", dims.width, dims.ffn_width, bias=dims.bias)
        self.fc_2 = linear("mlp", dims.width, dims.ffn_width, bias=dims.bias)
        self.proj = linear("mlp", dims.ffn_width, dims.width, bias=dims.bias)
        self.activation = F.silu if dims.mlp == "swiglu" else F.gelu

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to [..., C]."""
        gate, up = self.fc_1(x), self.fc_2(x)
        x = self.activation(gate) * up
        out: Tensor = self.proj(x)
        return out


class Block(nn.Module):
    """Attention and feed-forward with their norms."""

    def __init__(
        self, dims: Dims, linear: MakeLinear, *, has_prompt: bool, casts_product: bool
    ) -> None:
        """Make the layers."""
        super().__init__()
        self.dims = dims
        self.norm_1 = norm(dims, casts_product=casts_product)
        self.attn = Attention(dims, linear, has_prompt=has_prompt)
        self.norm_2 = None if dims.shared_norm else norm(dims, casts_product=casts_product)
        self.mlp = GeluMLP(dims, linear) if dims.mlp == "gelu" else GatedMLP(dims, linear)
        self.post_attention_norm = self.post_mlp_norm = nn.Identity()
        if dims.post_norms:
            self.post_attention_norm = norm(dims, casts_product=casts_product)
            self.post_mlp_norm = norm(dims, casts_product=casts_product)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Apply it to [B, T, C]."""
        n_1 = self.norm_1(x)
        h = self.post_attention_norm(self.attn(n_1, cos, sin))
        if self.dims.parallel_residual:
            n_2 = n_1 if self.norm_2 is None else self.norm_2(x)
            x = self.mlp(n_2) + h + x
        else:
            x = h + x
            x = self.post_mlp_norm(self.mlp(self.norm_2(x))) + x
        return x


class GPT(nn.Module):
    """The whole model."""

    cos: Tensor
    sin: Tensor

    def __init__(
        self, dims: Dims, linear: MakeLinear, *, prompts: bool, casts_product: bool
    ) -> None:
        """Make the model in the default type, on the default device.

        Args:
            dims: Its size.
            linear: Makes its linear layers.
            prompts: Whether blocks from the third on have LLaMA-Adapter's prompt.
            casts_product: Which order an RMS norm casts in.
        """
        super().__init__()
        self.dims = dims
        self.lm_head = linear("head", dims.width, dims.vocab, bias=dims.head_bias)
        self.wte = nn.Embedding(dims.vocab, dims.width)
        self.h = nn.ModuleList(
            Block(
                dims,
                linear,
                has_prompt=prompts and i >= ADAPTER_START,
                casts_product=casts_product,
            )
            for i in range(dims.num_layers)
        )
        self.ln_f = norm(dims, casts_product=casts_product)

    def set_length(self, length: int, dtype: torch.dtype) -> None:
        """Make the tables of the rotations for sequences of up to ``length``."""
        cos, sin = rope_tables(length, self.dims.rotary_width)
        self.register_buffer("cos", cos.to(dtype), persistent=False)
        self.register_buffer("sin", sin.to(dtype), persistent=False)

    def forward(self, ids_BT: Tensor, head_chunk: int = 0) -> Tensor | list[Tensor]:  # noqa: N803
        """Return logits [B, T, vocab], or a list of them by chunks of tokens."""
        length = ids_BT.size(1)
        cos, sin = self.cos[:length], self.sin[:length]
        x = self.wte(ids_BT)
        if self.dims.unit_offset:
            x = x * (self.dims.width**0.5)
        for block in self.h:
            x = block(x, cos, sin)
        x = self.ln_f(x)
        if head_chunk > 0:
            # the scripts of 2024 forgot the bound on logits here
            return [self.lm_head(chunk) for chunk in x.split(head_chunk, dim=1)]
        out: Tensor = self.lm_head(x)
        cap = self.dims.final_softcap
        return torch.tanh(out / cap) * cap if cap else out
