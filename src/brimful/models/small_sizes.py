"""The sizes of a small model that is traced, and configurations that many architectures share."""

from typing import Any, NamedTuple

_ROW_WEIGHTS = 8


class SmallSizes(NamedTuple):
    """One shape that a program is traced at.

    Attributes:
        micro_batch: Sequences.
        seq_len: Tokens per sequence.
        kv_heads: Key and value heads.
        per_kv: Query heads for each.
        head_dim: Width of a head.
        hidden: Width of the residual stream.
        intermediate: Width of the MLP.
        vocab: Rows of the embedding.
        positions: Learned positions.
        rank: Width of adapters.
        experts: Experts of a block.
        per_token: Experts that a token is sent to.
        expert_width: Inner width of one expert, where the MLP has another.
    """

    micro_batch: int
    seq_len: int
    kv_heads: int
    per_kv: int
    head_dim: int
    hidden: int
    intermediate: int
    vocab: int
    positions: int
    rank: int
    experts: int
    per_token: int
    expert_width: int

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.kv_heads * self.per_kv


def own_head_width(sizes: SmallSizes, num_layers: int) -> dict[str, Any]:
    """Heads are as wide as the configuration says."""
    hidden = sizes.hidden // sizes.heads * sizes.heads
    return {**_usual(sizes, num_layers), "hidden_size": hidden, "head_dim": sizes.head_dim}


def heads_cut_the_stream(sizes: SmallSizes, num_layers: int) -> dict[str, Any]:
    """All heads together are as wide as the residual stream."""
    hidden = sizes.heads * sizes.head_dim
    return {**_usual(sizes, num_layers), "hidden_size": hidden, "pad_token_id": None}


def mixture(sizes: SmallSizes, num_layers: int) -> dict[str, Any]:
    """Rows of experts' matrices are multiples of 16 bytes, which grouped products ask for."""
    return {
        **own_head_width(sizes, num_layers),
        "hidden_size": sizes.hidden // _ROW_WEIGHTS * _ROW_WEIGHTS,
        "num_experts_per_tok": sizes.per_token,
    }


def _usual(sizes: SmallSizes, num_layers: int) -> dict[str, Any]:
    return {
        "intermediate_size": sizes.intermediate,
        "num_hidden_layers": num_layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "vocab_size": sizes.vocab,
        "max_position_embeddings": sizes.positions,
    }
