"""T5 type encoder-decoders: RMSNorm, relative positions, attention of its own width, no biases.

Source: ``transformers.models.t5``; Raffel et al. 2019, arXiv:1910.10683; Shazeer 2020 for the
gated MLP of T5 1.1.
"""

from collections.abc import Sequence
from typing import Any

from brimful.models.architecture import Architecture
from brimful.models.fields import MAX_POSITIONS
from brimful.models.layout import (
    Blocks,
    Layout,
    Parameters,
    embedding,
    followed,
    linear,
    rms_norm,
    runs,
)
from brimful.models.spec import ModelSpec

MODEL_TYPE = "t5"
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


def layout(spec: ModelSpec) -> Layout:
    """Lay out the parameters: attention is 4 h A d, the MLP 2 h f or 3 h f where gated, norms h.

    A decoder's block attends twice. The first block of each stack holds the buckets of relative
    positions, A each.
    """
    sizes = sizes_of(spec.hf_config, DEFAULTS)
    parts = (_mlp(spec, gated=str(sizes["feed_forward_proj"]).startswith(_GATED)),)
    return stacks_layout(
        spec,
        sizes,
        encoder=parts * sizes["num_layers"],
        decoder=parts * num_decoder_blocks(sizes),
        own_embeddings=False,
    )


def _mlp(spec: ModelSpec, *, gated: bool) -> Parameters:
    hidden, width = spec.hidden_size, spec.intermediate_size
    name = "DenseReluDense"
    into = ("wi_0", "wi_1") if gated else ("wi",)
    return (
        *(part for wi in into for part in linear(f"{name}.{wi}", hidden, width)),
        *linear(f"{name}.wo", width, hidden),
    )


def stacks_layout(
    spec: ModelSpec,
    sizes: dict[str, Any],
    *,
    encoder: Sequence[Parameters],
    decoder: Sequence[Parameters],
    own_embeddings: bool,
) -> Layout:
    """Lay out an encoder and a decoder like T5's.

    ``sizes``: its configuration under one name for each size, defaults filled in. ``encoder``: the
    MLP of each of the encoder's blocks, named relative to its sublayer. ``own_embeddings``: whether
    each stack holds an embedding beside the shared one.
    """
    hidden, vocab = spec.hidden_size, spec.vocab_size
    buckets = sizes["relative_attention_num_buckets"]
    reading, writing = (
        embedding(f"{stack}.embed_tokens", vocab, hidden) if own_embeddings else ()
        for stack in ("encoder", "decoder")
    )
    between = (*rms_norm("encoder.final_layer_norm", hidden), *writing)
    return Layout(
        embedding=(*embedding("shared", vocab, hidden), *reading),
        blocks=(
            *followed(_stack(spec, "encoder", encoder, buckets=buckets), between),
            *_stack(spec, "decoder", decoder, buckets=buckets),
        ),
        final=rms_norm("decoder.final_layer_norm", hidden),
        head=() if spec.tied_embeddings else linear("lm_head", hidden, vocab),
    )


def _stack(
    spec: ModelSpec, stack: str, mlps: Sequence[Parameters], *, buckets: int
) -> tuple[Blocks, ...]:
    """Lay out the blocks of a stack; the first holds the positions of all."""
    crosses = stack == "decoder"
    first, *others = mlps
    blocks = [
        _block(spec, first, buckets=buckets, crosses=crosses),
        *(_block(spec, mlp, buckets=0, crosses=crosses) for mlp in others),
    ]
    return runs(f"{stack}.block", blocks)


def _block(spec: ModelSpec, mlp: Parameters, *, buckets: int, crosses: bool) -> Parameters:
    """Lay out a block: attention to itself, to the encoder where it is a decoder's, an MLP."""
    place = "layer.2" if crosses else "layer.1"
    cross = (
        *_attention(spec, "layer.1.EncDecAttention", buckets=0),
        *rms_norm("layer.1.layer_norm", spec.hidden_size),
    )
    return (
        *_attention(spec, "layer.0.SelfAttention", buckets=buckets),
        *rms_norm("layer.0.layer_norm", spec.hidden_size),
        *(cross if crosses else ()),
        *(part._replace(name=f"{place}.{part.name}") for part in mlp),
        *rms_norm(f"{place}.layer_norm", spec.hidden_size),
    )


def _attention(spec: ModelSpec, name: str, *, buckets: int) -> Parameters:
    hidden, width = spec.hidden_size, spec.num_heads * spec.head_dim
    positions = embedding(f"{name}.relative_attention_bias", buckets, spec.num_heads)
    return (
        *linear(f"{name}.q", hidden, width),
        *linear(f"{name}.k", hidden, width),
        *linear(f"{name}.v", hidden, width),
        *linear(f"{name}.o", width, hidden),
        *(positions if buckets else ()),
    )


ARCHITECTURE = Architecture(
    model_type=MODEL_TYPE,
    read=read,
    layout=layout,
    task="seq2seq",
    depth_field="num_layers",
    bias_kernels=("eager", "sdpa"),
)
