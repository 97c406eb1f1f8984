"""The Llama of transformers 4.38 (February 2024), and its Mistral, as FSDP trained them.

Owns the order of the models' operations and which of their results stay bound. Knows nothing of
training loops, pretend devices or published runs.

Shapes: B batch, S tokens, D model width, H heads, E head width.

Source: ``transformers/models/{llama,mistral}/modeling_*.py`` of 4.38.2.
"""

from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from hf_decoder import MLP, RMSNorm, Shape, rotate_half
from torch import Tensor, nn

Mask = Literal["written", "implied"]
"""Llama 4.38 writes its causal mask out, for all positions it knows; Mistral leaves it to SDPA."""


class Rotary(nn.Module):
    """Cosines and sines, made anew in every layer from frequencies in the parameters' type."""

    def __init__(self, head_width: int, max_positions: int) -> None:
        """Make the frequencies, and tables that are kept although nothing reads them."""
        super().__init__()
        self.register_buffer("inv_freq", torch.empty(head_width // 2))
        for name in ("_cos_cached", "_sin_cached"):
            self.register_buffer(name, torch.empty((max_positions, head_width)))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines [1, S, E] in the type of ``x``."""
        inv_freq = self.inv_freq[None, :, None].float().expand(position_ids.shape[0], -1, 1)
        positions = position_ids[:, None, :].float()
        freqs = (inv_freq.float() @ positions.float()).transpose(1, 2)
        emb = torch.cat((freqs, freqs), dim=-1)
        cos, sin = emb.cos(), emb.sin()
        return cos.to(dtype=x.dtype), sin.to(dtype=x.dtype)


class Attention(nn.Module):
    """Attention by PyTorch's own kernels; keys and values are repeated for every query head."""

    def __init__(self, shape: Shape) -> None:
        """Make the four projections."""
        super().__init__()
        self.num_heads, self.num_kv_heads = shape.num_heads, shape.num_kv_heads
        self.head_width = shape.width // shape.num_heads
        kv_width = shape.num_kv_heads * self.head_width
        self.q_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.k_proj = nn.Linear(shape.width, kv_width, bias=False)
        self.v_proj = nn.Linear(shape.width, kv_width, bias=False)
        self.o_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.rotary_emb = Rotary(self.head_width, shape.max_positions)

    def forward(self, hidden_states: Tensor, mask: Tensor | None, position_ids: Tensor) -> Tensor:
        """Attend; every name is bound as long as in the model."""
        batch, num_tokens, _ = hidden_states.size()
        query = self.q_proj(hidden_states)
        key = self.k_proj(hidden_states)
        value = self.v_proj(hidden_states)
        query = query.view(batch, num_tokens, self.num_heads, -1).transpose(1, 2)
        key = key.view(batch, num_tokens, self.num_kv_heads, -1).transpose(1, 2)
        value = value.view(batch, num_tokens, self.num_kv_heads, -1).transpose(1, 2)
        cos, sin = self.rotary_emb(value, position_ids)
        query, key = _apply_rotary(query, key, cos, sin)
        key, value = self._repeat(key), self._repeat(value)
        causal_mask = mask
        if mask is not None:
            causal_mask = mask[:, :, position_ids[0], :num_tokens]
            query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        attended = F.scaled_dot_product_attention(
            query, key, value, attn_mask=causal_mask, is_causal=mask is None
        )
        attended = attended.transpose(1, 2).contiguous()
        attended = attended.view(batch, num_tokens, -1)
        return self.o_proj(attended)

    def _repeat(self, x: Tensor) -> Tensor:
        groups = self.num_heads // self.num_kv_heads
        if groups == 1:
            return x
        batch, num_kv_heads, num_tokens, width = x.shape
        wide = x[:, :, None, :, :].expand(batch, num_kv_heads, groups, num_tokens, width)
        return wide.reshape(batch, num_kv_heads * groups, num_tokens, width)


def _apply_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)


class Block(nn.Module):
    """Attention and feed-forward, each after a norm and beside a residual."""

    def __init__(self, shape: Shape) -> None:
        """Make the parts."""
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.width)
        self.post_attention_layernorm = RMSNorm(shape.width)

    def forward(self, hidden: Tensor, mask: Tensor | None, position_ids: Tensor) -> Tensor:
        """Apply the block; the order of the bindings is the model's."""
        residual = hidden
        hidden = self.input_layernorm(hidden)
        hidden = self.self_attn(hidden, mask, position_ids)
        hidden = residual + hidden
        residual = hidden
        hidden = self.post_attention_layernorm(hidden)
        hidden = self.mlp(hidden)
        return residual + hidden


class Decoder(nn.Module):
    """Embedding, blocks, norm."""

    def __init__(self, shape: Shape, *, mask: Mask) -> None:
        """Make the parts, and the mask of all positions if it is written out."""
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.width)
        self.layers = nn.ModuleList([Block(shape) for _ in range(shape.num_layers)])
        self.norm = RMSNorm(shape.width)
        if mask == "written":
            square = (shape.max_positions, shape.max_positions)
            self.register_buffer("causal_mask", torch.empty(square, dtype=torch.bool))

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the last hidden states [B, S, D]."""
        inputs_embeds = self.embed_tokens(input_ids)
        position_ids = torch.arange(
            0, inputs_embeds.shape[1], device=inputs_embeds.device
        ).unsqueeze(0)
        mask = self._mask(inputs_embeds)
        hidden = inputs_embeds
        for layer in self.layers:
            hidden = layer(hidden, mask, position_ids)
        return self.norm(hidden)

    def _mask(self, x: Tensor) -> Tensor | None:
        """Write the mask out, once per sample."""
        if not hasattr(self, "causal_mask"):
            return None
        every = self.causal_mask[None, None, :, :].repeat(x.shape[0], 1, 1, 1)
        mask = every.to(x.dtype) * torch.finfo(x.dtype).min
        return mask.to(dtype=x.dtype, device=x.device)


class CausalLM(nn.Module):
    """A decoder with its head and the loss in it."""

    def __init__(self, shape: Shape, *, mask: Mask) -> None:
        """Make the parts."""
        super().__init__()
        self.model = Decoder(shape, mask=mask)
        self.lm_head = nn.Linear(shape.width, shape.vocab, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and the logits, which the model widens to fp32."""
        hidden_states = self.model(input_ids)
        logits = self.lm_head(hidden_states)
        logits = logits.float()
        shift_logits = logits[..., :-1, :].contiguous()
        shift_labels = labels[..., 1:].contiguous()
        shift_logits = shift_logits.view(-1, logits.shape[-1])
        shift_labels = shift_labels.view(-1)
        loss = F.cross_entropy(shift_logits, shift_labels)
        return loss, logits
