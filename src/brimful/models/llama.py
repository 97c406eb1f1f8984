"""Llama-type decoders: RMSNorm, rotary positions, SwiGLU, grouped-query attention.

Source: ``transformers.models.llama``; Touvron et al. 2023, arXiv:2302.13971 and 2307.09288.
"""

from typing import Any

from brimful.models.decoder import (
    gated_mlp,
    has,
    pre_norms,
    read_decoder,
    repeated_layout,
    switched_attention,
)
from brimful.models.layout import Layout
from brimful.models.spec import ModelSpec

MODEL_TYPE = "llama"
REQUIRED = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
)
_DEFAULTS = {"max_position_embeddings": 2048}


def read(name: str, config: dict[str, Any]) -> ModelSpec:
    """Take the dimensions out of a configuration, with the defaults of ``LlamaConfig``."""
    return read_decoder(
        name,
        config,
        model_type=MODEL_TYPE,
        defaults=_DEFAULTS,
        nullable=("num_key_value_heads", "head_dim"),
    )


def layout(spec: ModelSpec) -> Layout:
    """Lay out the parameters, biases where ``attention_bias`` or ``mlp_bias`` asks for them."""
    return repeated_layout(
        spec,
        switched_attention(spec),
        gated_mlp(spec.hidden_size, spec.intermediate_size, bias=has(spec, "mlp_bias")),
        pre_norms(spec),
    )
