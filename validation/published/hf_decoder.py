"""The decoders of transformers 4.48 with rotary positions: Llama, Mistral, Mixtral, Granite.

Owns the order of the models' operations and which of their results stay bound, for on both depends
what is alive. Knows nothing of training loops, pretend devices or published runs.

Shapes: B batch, S tokens, D model width, H heads, E head width.

Source: ``transformers/models/{mistral,mixtral,granite}/modeling_*.py`` and
``transformers/loss/loss_utils.py`` of 4.48.1.
"""

from collections.abc import Callable
from typing import Literal

import msgspec
import torch
import torch.nn.functional as F  # noqa: N812
from flash_attn2 import flash_attention
from torch import Tensor, nn

Checkpoint = Callable[..., Tensor]
Widened = Literal["model", "loss"]
"""Where logits become fp32.

Until 4.45 the ``model`` widens its own, and the narrow ones die; since 4.46 the ``loss`` does, and
both live while it is computed.
"""


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The size of a decoder.

    Attributes:
        width: Model width.
        num_layers: Blocks.
        num_heads: Query heads.
        num_kv_heads: Key-value heads.
        ffn_width: Width of the feed-forward's inside.
        vocab: Rows of the embedding.
        num_experts: Feed-forwards beside each other; 1: a dense model.
        tied: Whether the head is the embedding.
        multiplied: Whether embeddings, residuals and logits are scaled (Granite).
        max_positions: Rows of learnt positions; 0: rotary ones (GPTBigCode has learnt ones).
    """

    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    ffn_width: int
    vocab: int
    num_experts: int = 1
    tied: bool = False
    multiplied: bool = False
    max_positions: int = 0


TOP_K = 2
"""Experts per token, of Mixtral."""


class RMSNorm(nn.Module):
    """The norm in fp32; its result has the weight's type if that is wider than the input's."""

    def __init__(self, width: int) -> None:
        """Make the weight of a norm over ``width`` numbers."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Norm [..., D]."""
        given_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + 1e-5)
        return self.weight * hidden_states.to(given_dtype)


class Rotary(nn.Module):
    """Cosines and sines, made once per forward and shared by the layers."""

    def __init__(self, head_width: int) -> None:
        """Make the frequencies for heads of ``head_width``."""
        super().__init__()
        self.register_buffer("inv_freq", torch.empty(head_width // 2, dtype=torch.float32))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines [1, S, E] in the type of ``x``."""
        inv_freq = self.inv_freq[None, :, None].float().expand(position_ids.shape[0], -1, 1)
        positions = position_ids[:, None, :].float()
        with torch.autocast(device_type=x.device.type, enabled=False):
            freqs = (inv_freq.float() @ positions.float()).transpose(1, 2)
            emb = torch.cat((freqs, freqs), dim=-1)
            cos, sin = emb.cos(), emb.sin()
        cos, sin = cos * 1.0, sin * 1.0
        return cos.to(dtype=x.dtype), sin.to(dtype=x.dtype)


def rotate_half(x: Tensor) -> Tensor:
    """Rotate half the dimensions of each head."""
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def _apply_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)


class Attention(nn.Module):
    """Grouped-query attention by the flash-attn package."""

    def __init__(self, shape: Shape) -> None:
        """Make the four projections."""
        super().__init__()
        self.head_width = shape.width // shape.num_heads
        kv_width = shape.num_kv_heads * self.head_width
        self.q_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.k_proj = nn.Linear(shape.width, kv_width, bias=False)
        self.v_proj = nn.Linear(shape.width, kv_width, bias=False)
        self.o_proj = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:
        """Attend; the inputs of the kernel have half precision if anything around them has."""
        by_head = (*x.shape[:-1], -1, self.head_width)
        query = self.q_proj(x).view(by_head).transpose(1, 2)
        key = self.k_proj(x).view(by_head).transpose(1, 2)
        value = self.v_proj(x).view(by_head).transpose(1, 2)
        cos, sin = position_embeddings
        query, key = _apply_rotary(query, key, cos, sin)
        attn_output = self._attend(query, key, value)
        attn_output = attn_output.reshape(*x.shape[:-1], -1).contiguous()
        out: Tensor = self.o_proj(attn_output)
        return out

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        target = half_type(self, query)
        if value.dtype == torch.float32 and target is not None:
            query, key, value = query.to(target), key.to(target), value.to(target)
        return flash_attention(query, key, value)


def half_type(module: nn.Module, query: Tensor) -> torch.dtype | None:
    """Return the type to which fp32 queries are cast back, as transformers does for flash-attn."""
    if query.dtype != torch.float32:
        return None
    if torch.is_autocast_enabled(query.device.type):
        return torch.get_autocast_dtype(query.device.type)
    return next(x.dtype for x in module.parameters() if x.dtype != torch.float32)


class MLP(nn.Module):
    """The gated feed-forward."""

    def __init__(self, shape: Shape) -> None:
        """Make the three projections."""
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.ffn_width, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.ffn_width, bias=False)
        self.down_proj = nn.Linear(shape.ffn_width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to [..., D]."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Expert(nn.Module):
    """One of Mixtral's feed-forwards."""

    def __init__(self, shape: Shape) -> None:
        """Make the three projections."""
        super().__init__()
        self.w1 = nn.Linear(shape.width, shape.ffn_width, bias=False)
        self.w2 = nn.Linear(shape.ffn_width, shape.width, bias=False)
        self.w3 = nn.Linear(shape.width, shape.ffn_width, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Apply to the tokens of one expert."""
        hidden = F.silu(self.w1(tokens)) * self.w3(tokens)
        return self.w2(hidden)


class Experts(nn.Module):
    """A loop over the experts. Values say which tokens one gets; here each gets its share."""

    def __init__(self, shape: Shape) -> None:
        """Make the router and the experts."""
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.num_experts, bias=False)
        self.experts = nn.ModuleList([Expert(shape) for _ in range(shape.num_experts)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mixed outputs and the router's logits."""
        given_shape, num_experts = x.shape, len(self.experts)
        tokens = x.view(-1, given_shape[-1])
        router_logits = self.gate(tokens)
        weights = F.softmax(router_logits, dim=1, dtype=torch.float)
        weights, selected = torch.topk(weights, TOP_K, dim=-1)
        weights /= weights.sum(dim=-1, keepdim=True)
        weights = weights.to(tokens.dtype)
        final = torch.zeros(tokens.shape, dtype=tokens.dtype, device=tokens.device)
        expert_mask = F.one_hot(selected, num_classes=num_experts).permute(2, 1, 0)
        for expert in self.experts:
            idx, top_x = _balanced(expert_mask, tokens.shape[0] * TOP_K // num_experts)
            state = tokens[None, top_x].reshape(-1, given_shape[-1])
            current = expert(state) * weights[top_x, idx, None]
            final.index_add_(0, top_x, current.to(tokens.dtype))
        return final.reshape(given_shape), router_logits


def _balanced(expert_mask: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Allocate what ``torch.where`` of one expert's row returns: two columns of one tensor."""
    found = expert_mask.new_empty((num_tokens, 2))
    return found[:, 0], found[:, 1]


class Block(nn.Module):
    """Attention and feed-forward, each after a norm and beside a residual."""

    def __init__(self, shape: Shape) -> None:
        """Make the parts."""
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape) if shape.num_experts == 1 else Experts(shape)
        self.input_layernorm = RMSNorm(shape.width)
        self.post_attention_layernorm = RMSNorm(shape.width)
        self.multiplied = shape.multiplied

    def forward(self, x: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:
        """Apply the block; the order of the bindings is the model's."""
        residual = x
        hidden = self.input_layernorm(x)
        hidden = self.self_attn(hidden, position_embeddings)
        hidden = residual + (hidden * 1.0 if self.multiplied else hidden)
        residual = hidden
        hidden = self.post_attention_layernorm(hidden)
        hidden = self.mlp(hidden)
        router_logits = None
        if isinstance(hidden, tuple):
            hidden, router_logits = hidden
        hidden = residual + (hidden * 1.0 if self.multiplied else hidden)
        del router_logits
        return hidden


class Decoder(nn.Module):
    """Embedding, blocks, norm."""

    def __init__(self, shape: Shape) -> None:
        """Make the parts."""
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.width)
        self.layers = nn.ModuleList([Block(shape) for _ in range(shape.num_layers)])
        self.norm = RMSNorm(shape.width)
        self.rotary_emb = Rotary(shape.width // shape.num_heads)
        self.multiplied = shape.multiplied

    def forward(self, input_ids: Tensor, checkpoint: Checkpoint) -> Tensor:
        """Return the last hidden states [B, S, D]."""
        inputs_embeds = self.embed_tokens(input_ids)
        if self.multiplied:
            inputs_embeds = inputs_embeds * 1.0
        cache_position = torch.arange(0, inputs_embeds.shape[1], device=inputs_embeds.device)
        position_ids = cache_position.unsqueeze(0)
        hidden = inputs_embeds
        position_embeddings = self.rotary_emb(hidden, position_ids)
        for layer in self.layers:
            hidden = checkpoint(layer, hidden, position_embeddings)
        return self.norm(hidden)


class CausalLM(nn.Module):
    """A decoder with its head and the loss in it."""

    def __init__(self, shape: Shape, *, widened: Widened) -> None:
        """Make the parts; tie the head if the model does."""
        super().__init__()
        self.widened = widened
        self.model = Decoder(shape)
        self.lm_head = nn.Linear(shape.width, shape.vocab, bias=False)
        if shape.tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.multiplied = shape.multiplied

    def embedding(self) -> nn.Module:
        """Return the embedding of the tokens."""
        return self.model.embed_tokens

    def forward(
        self, input_ids: Tensor, labels: Tensor, checkpoint: Checkpoint
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the logits."""
        hidden_states = self.model(input_ids, checkpoint)
        logits = self.lm_head(hidden_states)
        if self.multiplied:
            logits = logits / 1.0
        if self.widened == "model":
            logits = logits.float()
        return _loss(logits, labels), logits


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss of the shifted tokens; four names stay bound while it is computed."""
    vocab = logits.shape[-1]
    logits = logits.float()
    shift_logits = logits[..., :-1, :].contiguous()
    shift_labels = labels[..., 1:].contiguous()
    shift_logits = shift_logits.view(-1, vocab)
    shift_labels = shift_labels.view(-1)
    loss = F.cross_entropy(shift_logits, shift_labels, reduction="sum")
    return loss / shift_labels.numel()
