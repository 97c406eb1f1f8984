"""What decoders share: how their configurations are read, and the parts of their blocks.

Shapes: h hidden, A query heads, K key and value heads, d head width, f inner width, V vocabulary.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from brimful.errors import ModelConfigError
from brimful.models.layout import Layout, Parameters, embedding, linear, rms_norm, runs
from brimful.models.spec import ModelSpec

BLOCKS = "model.layers"
_MAY_BE_ABSENT = ("num_key_value_heads", "head_dim")


def read_decoder(
    name: str,
    config: dict[str, Any],
    *,
    model_type: str,
    defaults: dict[str, Any],
    nullable: Sequence[str] = (),
) -> ModelSpec:
    """Take out the dimensions of a decoder whose configuration has the usual names.

    ``defaults``: what its configuration class fills in. No ``num_key_value_heads`` means as many as
    query heads, no ``head_dim`` the residual stream cut up. ``nullable``: which of these two its
    class takes as null, with the same meaning.
    """
    for field in _MAY_BE_ABSENT:
        if field in config and config[field] is None and field not in nullable:
            raise ModelConfigError(
                f"{name} has {field}=null, which {model_type} does not take; give a number or "
                f"leave it out"
            )
    sizes = {**defaults, **config}
    hidden, num_heads = sizes["hidden_size"], sizes["num_attention_heads"]
    return ModelSpec(
        name=name,
        model_type=model_type,
        hidden_size=hidden,
        intermediate_size=sizes["intermediate_size"],
        num_layers=sizes["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=sizes.get("num_key_value_heads") or num_heads,
        head_dim=sizes.get("head_dim") or hidden // num_heads,
        vocab_size=sizes["vocab_size"],
        max_seq_len=sizes["max_position_embeddings"],
        tied_embeddings=sizes.get("tie_word_embeddings", False),
        hf_config=config,
    )


def decoder_layout(spec: ModelSpec, blocks: Iterable[Parameters]) -> Layout:
    """Lay out a decoder: token embedding, blocks, RMSNorm, and a head where it is not tied."""
    hidden, vocab = spec.hidden_size, spec.vocab_size
    return Layout(
        embedding=embedding("model.embed_tokens", vocab, hidden),
        blocks=runs(BLOCKS, blocks),
        final=rms_norm("model.norm", hidden),
        head=() if spec.tied_embeddings else linear("lm_head", hidden, vocab),
    )


def repeated_layout(spec: ModelSpec, *parts: Parameters) -> Layout:
    """Lay out a decoder whose blocks are all of the same parts."""
    block = sum(parts, start=())
    return decoder_layout(spec, [block] * spec.num_layers)


def attention(spec: ModelSpec, *, bias: bool, output_bias: bool) -> Parameters:
    """Lay out grouped-query attention: q is h x A d, k and v are h x K d, o is A d x h.

    ``bias``: whether q, k and v have one.
    """
    hidden = spec.hidden_size
    query, key = query_width(spec), key_width(spec)
    return (
        *linear("self_attn.q_proj", hidden, query, bias=bias),
        *linear("self_attn.k_proj", hidden, key, bias=bias),
        *linear("self_attn.v_proj", hidden, key, bias=bias),
        *linear("self_attn.o_proj", query, hidden, bias=output_bias),
    )


def switched_attention(spec: ModelSpec, *, default: bool = False) -> Parameters:
    """Lay out attention whose four matrices have biases where ``attention_bias`` says so."""
    bias = has(spec, "attention_bias", default=default)
    return attention(spec, bias=bias, output_bias=bias)


def query_width(spec: ModelSpec) -> int:
    """Return A d: all query heads side by side."""
    return spec.num_heads * spec.head_dim


def key_width(spec: ModelSpec) -> int:
    """Return K d: all key heads side by side."""
    return spec.num_kv_heads * spec.head_dim


def head_norms(query: int, key: int) -> Parameters:
    """Lay out norms of queries and keys, of the widths that they span."""
    return (*rms_norm("self_attn.q_norm", query), *rms_norm("self_attn.k_norm", key))


def gated_mlp(hidden: int, width: int, *, bias: bool = False, name: str = "mlp") -> Parameters:
    """Lay out a gated MLP: 3 h f, and 2 f + h where it has biases."""
    return (
        *linear(f"{name}.gate_proj", hidden, width, bias=bias),
        *linear(f"{name}.up_proj", hidden, width, bias=bias),
        *linear(f"{name}.down_proj", width, hidden, bias=bias),
    )


def norms(spec: ModelSpec, *names: str) -> Parameters:
    """Lay out a block's RMSNorms over the residual stream, h each."""
    return tuple(part for name in names for part in rms_norm(name, spec.hidden_size))


def pre_norms(spec: ModelSpec) -> Parameters:
    """Lay out the two norms that most decoders have: before attention, and before the MLP."""
    return norms(spec, "input_layernorm", "post_attention_layernorm")


def has(spec: ModelSpec, switch: str, *, default: bool = False) -> bool:
    """Whether a configuration switches something on."""
    return bool(spec.hf_config.get(switch, default))
