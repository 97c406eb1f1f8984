"""Small models to trace, one for each architecture, and the sizes they are traced at."""

from collections.abc import Callable
from typing import Any, NamedTuple

from brimful.models.config import read_config
from brimful.models.spec import ModelSpec


class Sizes(NamedTuple):
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


SHAPES = (
    Sizes(3, 640, 2, 3, 32, 264, 328, 1096, 704, 16, 6, 2, 136),
    Sizes(5, 1152, 4, 2, 64, 408, 712, 1544, 1288, 24, 17, 5, 56),
    Sizes(7, 1280, 3, 5, 96, 510, 904, 2312, 1336, 40, 11, 3, 184),
    Sizes(2, 1920, 5, 3, 128, 240, 1208, 3336, 2176, 56, 26, 4, 88),
)
"""Tokens are multiples of 2 and 5 (chunks); sequences of 128 and head widths of 32, to which flash
attention's backward rounds; matrices of 64 weights, which share a scale in 4 bits."""

DEGREES = (2, 3, 5, 4)
"""Devices that share every matrix, at each shape, of an architecture such as ``llama-tp``."""
SHARES = (1.5, 0.8, 1.25, 1.1)
"""Rows that come to a device's experts for each that it sends, of an architecture such as
``mixtral-ep``, whose experts as many devices part as share a matrix elsewhere."""
_CUT, _PARTED = "tp", "ep"


def degree(architecture: str, sizes: Sizes) -> int:
    """Return how many devices share every matrix where a program is traced at some sizes."""
    return DEGREES[_place(sizes)] if _CUT in architecture.split("-") else 1


def parting(architecture: str, sizes: Sizes) -> int:
    """Return how many devices part the experts where a program is traced at some sizes."""
    return DEGREES[_place(sizes)] if _PARTED in architecture.split("-") else 1


def share_received(sizes: Sizes) -> float:
    """Return the rows that come to a device's experts there for each that it sends."""
    return SHARES[_place(sizes)]


def _place(sizes: Sizes) -> int:
    """Return which of ``SHAPES`` some sizes are of, for however many sequences."""
    return [shape.seq_len for shape in SHAPES].index(sizes.seq_len)


def small_model(architecture: str, sizes: Sizes, *, num_layers: int) -> ModelSpec:
    """Return a model of an architecture such as ``llama-tied-mha`` or ``gpt2-gelu-tied``.

    Where it is cut, the sizes are those of one device, and so are experts that are parted.
    """
    model_type, *flags = architecture.split("-")
    tp, ep = degree(architecture, sizes), parting(architecture, sizes)
    sizes = sizes._replace(
        kv_heads=tp * sizes.kv_heads, intermediate=tp * sizes.intermediate, vocab=tp * sizes.vocab,
        experts=ep * sizes.experts,
    )  # fmt: skip
    sizes = sizes._replace(per_kv=1) if "mha" in flags else sizes
    config = {"model_type": model_type, "tie_word_embeddings": "tied" in flags, **_NO_TOKENS}
    chosen = {"activation_function": "gelu"} if "gelu" in flags else {}
    return read_config(architecture, {**config, **CONFIGS[model_type](sizes, num_layers), **chosen})


_ROW_WEIGHTS = 8
_NO_TOKENS = {"bos_token_id": None, "eos_token_id": None}
"""Those of a class's defaults lie beyond a small vocabulary."""


def _own_head_width(sizes: Sizes, num_layers: int) -> dict[str, Any]:
    """Heads are as wide as the configuration says."""
    hidden = sizes.hidden // sizes.heads * sizes.heads
    return {**_llama_like(sizes, num_layers), "hidden_size": hidden, "head_dim": sizes.head_dim}


def _heads_cut_the_stream(sizes: Sizes, num_layers: int) -> dict[str, Any]:
    """All heads together are as wide as the residual stream."""
    hidden = sizes.heads * sizes.head_dim
    return {**_llama_like(sizes, num_layers), "hidden_size": hidden, "pad_token_id": None}


def _llama_like(sizes: Sizes, num_layers: int) -> dict[str, Any]:
    return {
        "intermediate_size": sizes.intermediate,
        "num_hidden_layers": num_layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "vocab_size": sizes.vocab,
        "max_position_embeddings": sizes.positions,
    }


def _gpt2(sizes: Sizes, num_layers: int) -> dict[str, Any]:
    return {
        "n_layer": num_layers,
        "n_embd": sizes.heads * sizes.head_dim,
        "n_head": sizes.heads,
        "n_inner": sizes.intermediate,
        "vocab_size": sizes.vocab,
        "n_positions": sizes.positions,
    }


def _mixture(sizes: Sizes, num_layers: int) -> dict[str, Any]:
    """Rows of experts' matrices are multiples of 16 bytes, which grouped products ask for."""
    return {
        **_own_head_width(sizes, num_layers),
        "hidden_size": sizes.hidden // _ROW_WEIGHTS * _ROW_WEIGHTS,
        "num_experts_per_tok": sizes.per_token,
    }


def _mixtral(sizes: Sizes, num_layers: int) -> dict[str, Any]:
    return {**_mixture(sizes, num_layers), "num_local_experts": sizes.experts}


def _qwen3_moe(sizes: Sizes, num_layers: int) -> dict[str, Any]:
    return {
        **_mixture(sizes, num_layers),
        "num_experts": sizes.experts,
        "moe_intermediate_size": sizes.expert_width,
        "norm_topk_prob": True,
    }


CONFIGS: dict[str, Callable[[Sizes, int], dict[str, Any]]] = {
    "gemma2": _own_head_width,
    "gpt2": _gpt2,
    "llama": _own_head_width,
    "mixtral": _mixtral,
    "olmo2": _heads_cut_the_stream,
    "phi3": _heads_cut_the_stream,
    "qwen3": _own_head_width,
    "qwen3_moe": _qwen3_moe,
}
