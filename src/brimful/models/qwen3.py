"""Qwen3 type decoders: Llama's block with an RMSNorm on every query and key head.

Source: ``transformers.models.qwen3``; Yang et al. 2025, arXiv:2505.09388.
"""

from functools import partial

from brimful.models.architecture import HEAD_WIDTH, Architecture, BlockCode, Shipped, Window
from brimful.models.decoder import (
    gated_mlp,
    head_norms,
    pre_norms,
    read_decoder,
    repeated_layout,
    switched_attention,
)
from brimful.models.layout import Layout, Parameters
from brimful.models.small_sizes import own_head_width
from brimful.models.spec import ModelSpec

MODEL_TYPE = "qwen3"
_DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "max_position_embeddings": 32768,
}
"""Of ``Qwen3Config``."""


def layout(spec: ModelSpec) -> Layout:
    """Lay out the parameters: all heads share one norm of queries and one of keys, d each."""
    return repeated_layout(
        spec,
        normed_attention(spec),
        gated_mlp(spec.hidden_size, spec.intermediate_size),
        pre_norms(spec),
    )


def normed_attention(spec: ModelSpec) -> Parameters:
    """Lay out attention with its norms, as Qwen3's mixtures have it too."""
    return (*switched_attention(spec), *head_norms(spec.head_dim, spec.head_dim))


ARCHITECTURE = Architecture(
    model_type=MODEL_TYPE,
    read=partial(
        read_decoder, model_type=MODEL_TYPE, defaults=_DEFAULTS, nullable=("num_key_value_heads",)
    ),
    layout=layout,
    rotates=HEAD_WIDTH,
    window=Window(default=4096, is_switched=True, blocks="last"),
    tensor="whole",
    is_staged=True,
    code=BlockCode(norms_heads=True),
    traced_as=MODEL_TYPE,
    small=own_head_width,
    shipped=Shipped(
        variants=("", "tied", "tp", "tied-tp"),
        before_ampere=("", "tied"),
        adapters=True,
        cuts_half=True,
    ),
)
