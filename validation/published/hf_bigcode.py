"""GPTBigCode of transformers 4.48: learnt positions, multi-query attention, dropout, biases.

Owns the order of the model's operations. Its checkpointed blocks return keys and values although
they train: unlike the other models it does not turn its cache off.

Shapes: B batch, S tokens, D model width, H heads, E head width.

Source: ``transformers/models/gpt_bigcode/modeling_gpt_bigcode.py`` of 4.48.1 and the configuration
of bigcode/gpt_bigcode-santacoder.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from flash_attn2 import flash_attention
from hf_decoder import Checkpoint, Shape, half_type
from torch import Tensor, nn

DROPOUT = 0.1


class Attention(nn.Module):
    """Attention whose heads share one key and one value, by the flash-attn package."""

    def __init__(self, shape: Shape) -> None:
        """Make the two projections."""
        super().__init__()
        self.num_heads, self.width = shape.num_heads, shape.width
        self.head_width = shape.width // shape.num_heads
        self.c_attn = nn.Linear(shape.width, shape.width + 2 * self.head_width)
        self.c_proj = nn.Linear(shape.width, shape.width)
        self.resid_dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output, and keys and values: a part of the first projection's result."""
        query, key_value = self.c_attn(x).split((self.width, 2 * self.head_width), dim=2)
        present = key_value
        key, value = key_value.split((self.head_width, self.head_width), dim=-1)
        batch, num_tokens, _ = query.shape
        query = query.reshape(batch, num_tokens, self.num_heads, self.head_width)
        key, value = key.unsqueeze(2), value.unsqueeze(2)
        target = half_type(self, query)
        if target is not None:
            query, key, value = query.to(target), key.to(target), value.to(target)
        attn_output = flash_attention(query, key, value)
        reshaped = attn_output.reshape(batch, num_tokens, self.width)
        attn_output = self.c_proj(reshaped)
        attn_output = self.resid_dropout(attn_output)
        return attn_output, present


class MLP(nn.Module):
    """The feed-forward with the tanh GELU."""

    def __init__(self, shape: Shape) -> None:
        """Make the two projections."""
        super().__init__()
        self.c_fc = nn.Linear(shape.width, shape.ffn_width)
        self.c_proj = nn.Linear(shape.ffn_width, shape.width)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, hidden: Tensor) -> Tensor:
        """Apply to [..., D]."""
        hidden = self.c_fc(hidden)
        hidden = F.gelu(hidden, approximate="tanh")
        hidden = self.c_proj(hidden)
        return self.dropout(hidden)


class Block(nn.Module):
    """Attention and feed-forward, each after a norm and beside a residual."""

    def __init__(self, shape: Shape) -> None:
        """Make the parts."""
        super().__init__()
        self.ln_1 = nn.LayerNorm(shape.width)
        self.attn = Attention(shape)
        self.ln_2 = nn.LayerNorm(shape.width)
        self.mlp = MLP(shape)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden states, and keys and values."""
        residual = hidden
        hidden = self.ln_1(hidden)
        attn_outputs = self.attn(hidden)
        attn_output = attn_outputs[0]
        hidden = attn_output + residual
        residual = hidden
        hidden = self.ln_2(hidden)
        feed_forward = self.mlp(hidden)
        hidden = residual + feed_forward
        return hidden, attn_outputs[1]


class Transformer(nn.Module):
    """Embeddings, blocks, norm."""

    def __init__(self, shape: Shape) -> None:
        """Make the parts, among them a mask that flash attention does not use."""
        super().__init__()
        self.wte = nn.Embedding(shape.vocab, shape.width)
        self.wpe = nn.Embedding(shape.max_positions, shape.width)
        self.drop = nn.Dropout(DROPOUT)
        self.h = nn.ModuleList([Block(shape) for _ in range(shape.num_layers)])
        self.ln_f = nn.LayerNorm(shape.width)
        mask = torch.empty((shape.max_positions, shape.max_positions), dtype=torch.bool)
        self.register_buffer("bias", mask)

    def forward(self, input_ids: Tensor, checkpoint: Checkpoint) -> tuple[Tensor, list[Tensor]]:
        """Return the last hidden states, and every block's keys and values."""
        attention_mask = torch.ones_like(input_ids)
        position_ids = attention_mask.long().cumsum(-1) - 1
        position_ids.masked_fill_(attention_mask == 0, 1)
        inputs_embeds = self.wte(input_ids)
        position_embeds = self.wpe(position_ids)
        hidden = inputs_embeds + position_embeds
        hidden = self.drop(hidden)
        presents = []
        for block in self.h:
            outputs = checkpoint(block, hidden)
            hidden = outputs[0]
            presents.append(outputs[1])
        hidden = self.ln_f(hidden)
        return hidden, presents


class BigCodeLM(nn.Module):
    """The transformer with its head, which is the embedding, and the loss in it."""

    def __init__(self, shape: Shape) -> None:
        """Make the parts and tie the head."""
        super().__init__()
        self.transformer = Transformer(shape)
        self.lm_head = nn.Linear(shape.width, shape.vocab, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def embedding(self) -> nn.Module:
        """Return the embedding of the tokens."""
        return self.transformer.wte

    def forward(
        self, input_ids: Tensor, labels: Tensor, checkpoint: Checkpoint
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the loss, the logits, and every block's keys and values."""
        outputs = self.transformer(input_ids, checkpoint)
        hidden_states = outputs[0]
        lm_logits = self.lm_head(hidden_states)
        shift_logits = lm_logits[..., :-1, :].contiguous()
        shift_labels = labels[..., 1:].contiguous()
        loss = F.cross_entropy(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1))
        return loss, lm_logits, outputs[1]
