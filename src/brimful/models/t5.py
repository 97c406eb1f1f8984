"""T5 type encoder-decoders: RMSNorm, relative positions, attention of its own width, no biases.

Source: ``transformers.models.t5``; Raffel et al. 2019, arXiv:1910.10683; Shazeer 2020 for the
gated MLP of T5 1.1.
"""

from typing import Any

from brimful.models.fields import MAX_POSITIONS
from brimful.models.spec import ModelSpec, ParameterCount

MODEL_TYPE = "t5"
REQUIRED = ()
DEFAULTS = {
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_heads": 8,
    "vocab_size": 32128,
    "relative_attention_num_buckets": 32,
    "feed_forward_proj": "relu",
}
_GATED = "gated-"
ALIASES = {
    "hidden_size": "d_model",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
}
"""Names that ``T5Config`` takes as well."""


def read(name: str, config: dict[str, Any]) -> ModelSpec:
    """Take the dimensions out of a configuration, with the defaults of ``T5Config``."""
    return read_stacks(name, config, model_type=MODEL_TYPE, defaults=DEFAULTS)


def read_stacks(
    name: str, config: dict[str, Any], *, model_type: str, defaults: dict[str, Any]
) -> ModelSpec:
    """Take out the dimensions of any encoder-decoder whose configuration is like T5's."""
    sizes = sizes_of(config, defaults)
    return ModelSpec(
        name=name,
        model_type=model_type,
        hidden_size=sizes["d_model"],
        intermediate_size=sizes["d_ff"],
        num_layers=sizes["num_layers"] + num_decoder_blocks(sizes),
        num_heads=sizes["num_heads"],
        num_kv_heads=sizes["num_heads"],
        head_dim=sizes["d_kv"],
        vocab_size=sizes["vocab_size"],
        max_seq_len=MAX_POSITIONS,
        tied_embeddings=config.get("tie_word_embeddings", True),
        hf_config=config,
    )


def sizes_of(config: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Fill in what a configuration leaves to its defaults, under one name for each size."""
    named = {ALIASES.get(field, field): value for field, value in config.items()}
    # The class fills this in before it hears of other names for the encoder's.
    decoder = config.get("num_layers", defaults["num_layers"])
    return {"num_decoder_layers": decoder, **defaults, **named}


def num_decoder_blocks(sizes: dict[str, Any]) -> int:
    """Count the decoder's blocks: as many as the encoder's where nothing else is said."""
    return int(sizes["num_decoder_layers"] or sizes["num_layers"])


def parameter_count(spec: ModelSpec) -> ParameterCount:
    """Count parameters: attention is 4 h A d, the MLP 2 h f or 3 h f where gated, each norm h.

    A decoder's block attends twice. The first block of each stack holds the buckets of relative
    positions, A each.
    """
    sizes = sizes_of(spec.hf_config, DEFAULTS)
    h, f = spec.hidden_size, spec.intermediate_size
    attention = 4 * h * spec.num_heads * spec.head_dim + h
    gated = str(sizes["feed_forward_proj"]).startswith(_GATED)
    mlp = (3 if gated else 2) * h * f + h
    buckets = 2 * sizes["relative_attention_num_buckets"] * spec.num_heads
    return ParameterCount(
        embedding=spec.vocab_size * h,
        block=2 * attention + mlp,
        num_blocks=num_decoder_blocks(sizes),
        other_blocks=sizes["num_layers"] * (attention + mlp) + buckets,
        final=2 * h,
        head=0 if spec.tied_embeddings else spec.vocab_size * h,
    )
