"""What is trained: the dimensions of a model. Knows no torch and no hardware."""

from typing import Any

import msgspec


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The dimensions of a decoder, and the configuration that ``transformers`` builds it from.

    Attributes:
        name: What people call it; a registry name, or the file it was read from.
        model_type: The architecture key of ``transformers`` (``llama``, ``gpt2``).
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the MLP.
        num_layers: Number of decoder blocks.
        num_heads: Query heads per block.
        num_kv_heads: Key and value heads per block.
        head_dim: Width of one head.
        vocab_size: Rows of the token embedding.
        max_seq_len: The longest sequence that the model's positions cover.
        tied_embeddings: Whether the output layer is the token embedding.
        hf_config: The raw configuration fields, handed to ``transformers`` as they are.
    """

    name: str
    model_type: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_seq_len: int
    tied_embeddings: bool
    hf_config: dict[str, Any]


class ParameterCount(msgspec.Struct, frozen=True, kw_only=True):
    """Where the parameters of a decoder are.

    Attributes:
        embedding: Token (and position) embeddings, before the first block.
        block: One decoder block.
        num_blocks: How many blocks there are.
        final: What follows the last block: the final norm.
        head: The output layer where it is not tied to the embedding, else 0.
    """

    embedding: int
    block: int
    num_blocks: int
    final: int
    head: int

    @property
    def total(self) -> int:
        """Every parameter once."""
        return self.embedding + self.num_blocks * self.block + self.final + self.head
