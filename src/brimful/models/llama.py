"""Llama-type decoders: RMSNorm, rotary positions, SwiGLU, grouped-query attention.

Source: ``transformers.models.llama``; Touvron et al. 2023, arXiv:2302.13971 and 2307.09288.
"""

from typing import Any

from brimful.models.spec import ModelSpec, ParameterCount

MODEL_TYPE = "llama"
REQUIRED = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
)


def read(name: str, config: dict[str, Any]) -> ModelSpec:
    """Take the dimensions out of a configuration, with the defaults of ``LlamaConfig``."""
    num_heads = config["num_attention_heads"]
    return ModelSpec(
        name=name,
        model_type=MODEL_TYPE,
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=config.get("num_key_value_heads") or num_heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // num_heads,
        vocab_size=config["vocab_size"],
        max_seq_len=config.get("max_position_embeddings", 2048),
        tied_embeddings=config.get("tie_word_embeddings", False),
        hf_config=config,
    )


def parameter_count(spec: ModelSpec) -> ParameterCount:
    """Count parameters: q and o are h x A d, k and v are h x K d, the MLP is 3 h f, norms are h.

    Biases are counted where ``attention_bias`` or ``mlp_bias`` asks for them.
    """
    h, f = spec.hidden_size, spec.intermediate_size
    q_width, kv_width = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    attention_bias = spec.hf_config.get("attention_bias", False) * (q_width + 2 * kv_width + h)
    mlp_bias = spec.hf_config.get("mlp_bias", False) * (2 * f + h)
    matrices = 2 * h * q_width + 2 * h * kv_width + 3 * h * f
    return ParameterCount(
        embedding=spec.vocab_size * h,
        block=matrices + attention_bias + mlp_bias + 2 * h,
        num_blocks=spec.num_layers,
        other_blocks=0,
        final=h,
        head=0 if spec.tied_embeddings else spec.vocab_size * h,
    )
