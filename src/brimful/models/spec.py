"""What is trained: the dimensions of a model. Knows no torch and no hardware."""

from typing import Any

import msgspec

from brimful.text.escaping import Line

MODULE = "module"
"""The ``model_type`` of a model that a factory makes and of which nothing else is known."""


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The dimensions of a model, and the configuration that ``transformers`` builds it from.

    A dimension that an architecture does not have is 0: a ``module`` has none but its name.

    Attributes:
        name: What people call it: a registry name, a hub id, the file it was read from, or the
            ``package.module:factory`` of a module.
        model_type: The architecture key of ``transformers`` (``llama``, ``bert``), or ``module``.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the MLP.
        num_layers: Blocks that can be checkpointed, those of the encoder and the decoder together.
        num_heads: Query heads per block.
        num_kv_heads: Key and value heads per block.
        head_dim: Width of one head.
        vocab_size: Rows of the token embedding.
        max_seq_len: The longest sequence that the model's positions cover; ``MAX_POSITIONS`` where
            positions are relative and cover any; 1 for a module, whose samples are not sequences.
        tied_embeddings: Whether the output layer is the token embedding.
        hf_config: The raw configuration fields, handed to ``transformers`` as they are.
    """

    name: Line
    model_type: Line
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
    """Where the parameters of a model are.

    Attributes:
        embedding: Token (and position) embeddings, before the first block.
        block: One block of the decoder, or of the encoder where there is no decoder.
        num_blocks: How many blocks of that kind there are.
        other_blocks: Blocks of any other kind, all together: an encoder beside a decoder, blocks
            with experts, and what only the first block of a stack has.
        final: What follows the last block: the final norm, a pooler.
        head: The output layer where it is not tied to the embedding, else 0.
    """

    embedding: int
    block: int
    num_blocks: int
    other_blocks: int
    final: int
    head: int

    @property
    def total(self) -> int:
        """Every parameter once."""
        blocks = self.num_blocks * self.block + self.other_blocks
        return self.embedding + blocks + self.final + self.head
