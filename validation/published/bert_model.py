"""BERT for sequence classification as transformers had it in January 2022, in plain PyTorch.

Attention is written out, with dropout; a checkpointed layer is recomputed the reentrant way.

Shape suffixes: B batch, S tokens, D model width, H heads, E head width.

Source: ``models/bert/modeling_bert.py`` of huggingface/transformers, 4.15.
"""

import math
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

DROPOUT = 0.1
MASKED = -10000.0


class Dims(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The size of an encoder; BERT-large's.

    Attributes:
        width: Model width.
        num_layers: Layers.
        num_heads: Heads.
        ffn_width: Width inside the feed-forward.
        vocab: Rows of the word embedding.
        num_positions: Rows of the position embedding.
        num_labels: Classes.
    """

    width: int = 1024
    num_layers: int = 24
    num_heads: int = 16
    ffn_width: int = 4096
    vocab: int = 30522
    num_positions: int = 512
    num_labels: int = 2


class Embeddings(nn.Module):
    """Words, positions and token types, normed."""

    position_ids: Tensor

    def __init__(self, dims: Dims) -> None:
        """Make the tables."""
        super().__init__()
        self.word = nn.Embedding(dims.vocab, dims.width, padding_idx=0)
        self.position = nn.Embedding(dims.num_positions, dims.width)
        self.token_type = nn.Embedding(2, dims.width)
        self.norm = nn.LayerNorm(dims.width, eps=1e-12)
        self.dropout = nn.Dropout(DROPOUT)
        positions = torch.arange(dims.num_positions).expand((1, -1))
        self.register_buffer("position_ids", positions)
        types = torch.zeros(positions.size(), dtype=torch.long)
        self.register_buffer("token_type_ids", types, persistent=False)

    def forward(self, ids_BS: Tensor) -> Tensor:  # noqa: N803
        """Embed."""
        length = ids_BS.size(1)
        types = self.token_type_ids[:, :length].expand(*ids_BS.size())
        x = self.word(ids_BS) + self.token_type(types)
        x += self.position(self.position_ids[:, :length])
        out: Tensor = self.dropout(self.norm(x))
        return out


class KeepingSoftmax(torch.autograd.Function):  # type: ignore[misc]
    """Softmax that keeps its input as well as its result, as PyTorch's did up to 1.11.

    Source: ``_softmax`` in ``tools/autograd/derivatives.yaml`` of PyTorch 1.10.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        """Return the softmax over the last dimension, in fp32."""
        out = torch._softmax(x, -1, x.dtype != torch.float32)  # noqa: SLF001
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        """Return the gradient in the type of the input."""
        x, out = ctx.saved_tensors
        return torch._softmax_backward_data(grad, out, -1, x.dtype)  # noqa: SLF001


class SelfAttention(nn.Module):
    """Attention written out, and the dense layer behind it."""

    def __init__(self, dims: Dims) -> None:
        """Make the layers."""
        super().__init__()
        self.num_heads, self.head_width = dims.num_heads, dims.width // dims.num_heads
        self.query, self.key, self.value, self.dense = (
            nn.Linear(dims.width, dims.width) for _ in range(4)
        )
        self.norm = nn.LayerNorm(dims.width, eps=1e-12)
        self.dropout, self.dense_dropout = nn.Dropout(DROPOUT), nn.Dropout(DROPOUT)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.size()[:-1], self.num_heads, self.head_width).permute(0, 2, 1, 3)

    def forward(self, x_BSD: Tensor, mask: Tensor) -> Tensor:  # noqa: N803
        """Attend."""
        q = self.query(x_BSD)
        k, v = self._heads(self.key(x_BSD)), self._heads(self.value(x_BSD))
        scores = torch.matmul(self._heads(q), k.transpose(-1, -2))
        scores = scores / math.sqrt(self.head_width)
        scores = scores + mask
        probabilities = self.dropout(KeepingSoftmax.apply(scores))
        context = torch.matmul(probabilities, v).permute(0, 2, 1, 3).contiguous()
        context = context.view(*x_BSD.size())
        y = self.dense_dropout(self.dense(context))
        out: Tensor = self.norm(y + x_BSD)
        return out


class Layer(nn.Module):
    """One encoder layer."""

    def __init__(self, dims: Dims) -> None:
        """Make the layers."""
        super().__init__()
        self.attention = SelfAttention(dims)
        self.intermediate = nn.Linear(dims.width, dims.ffn_width)
        self.output = nn.Linear(dims.ffn_width, dims.width)
        self.norm = nn.LayerNorm(dims.width, eps=1e-12)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Apply it to [B, S, D]."""
        x = self.attention(x, mask)
        y = F.gelu(self.intermediate(x))
        y = self.dropout(self.output(y))
        out: Tensor = self.norm(y + x)
        return out


class Classifier(nn.Module):
    """The encoder, its pooler and the classifier, with its loss."""

    def __init__(self, dims: Dims, *, checkpointed: bool) -> None:
        """Make the model on the default device."""
        super().__init__()
        self.checkpointed = checkpointed
        self.embeddings = Embeddings(dims)
        self.layer = nn.ModuleList(Layer(dims) for _ in range(dims.num_layers))
        self.pooler = nn.Linear(dims.width, dims.width)
        self.dropout = nn.Dropout(DROPOUT)
        self.classifier = nn.Linear(dims.width, dims.num_labels)

    def forward(self, ids_BS: Tensor, labels_B: Tensor) -> Tensor:  # noqa: N803
        """Return the mean loss."""
        mask = torch.ones(ids_BS.size(), device=ids_BS.device)[:, None, None, :]
        mask = (1.0 - mask) * MASKED
        x = self.embeddings(ids_BS)
        for layer in self.layer:
            if self.checkpointed:
                x = checkpoint(layer, x, mask, use_reentrant=True)
            else:
                x = layer(x, mask)
        pooled = torch.tanh(self.pooler(x[:, 0]))
        logits = self.classifier(self.dropout(pooled))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), labels_B.view(-1))
