"""Phi-3 and Phi-4 type decoders: Llama's block with fused projections, the output first.

Source: ``transformers.models.phi3``; Abdin et al. 2024, arXiv:2404.14219 and 2412.08905.
"""

from functools import partial

from brimful.models.architecture import CUT_STREAM, SILU, Architecture, BlockCode, Shipped, Traced
from brimful.models.decoder import key_width, pre_norms, query_width, read_decoder, repeated_layout
from brimful.models.layout import Layout, Parameters, linear
from brimful.models.small_sizes import heads_cut_the_stream
from brimful.models.spec import ModelSpec

MODEL_TYPE = "phi3"
_DEFAULTS = {
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
}
"""Of ``Phi3Config``."""


def layout(spec: ModelSpec) -> Layout:
    """Lay out the parameters: q, k and v are one matrix, gate and up another; no biases."""
    return repeated_layout(spec, _attention(spec), _mlp(spec), pre_norms(spec))


def _attention(spec: ModelSpec) -> Parameters:
    hidden, query = spec.hidden_size, query_width(spec)
    return (
        *linear("self_attn.o_proj", query, hidden),
        *linear("self_attn.qkv_proj", hidden, query + 2 * key_width(spec)),
    )


def _mlp(spec: ModelSpec) -> Parameters:
    hidden, width = spec.hidden_size, spec.intermediate_size
    return (
        *linear("mlp.gate_up_proj", hidden, 2 * width),
        *linear("mlp.down_proj", width, hidden),
    )


ARCHITECTURE = Architecture(
    model_type=MODEL_TYPE,
    read=partial(
        read_decoder, model_type=MODEL_TYPE, defaults=_DEFAULTS, nullable=("num_key_value_heads",)
    ),
    layout=layout,
    rotates=CUT_STREAM,
    fused_matrices="qkv_proj and gate_up_proj",
    is_staged=True,
    code=BlockCode(matrices="joined"),
    traced_as=MODEL_TYPE,
    traced={**SILU, "partial_rotary_factor": Traced(1.0, (1.0,))},
    small=heads_cut_the_stream,
    shipped=Shipped(adapters=True),
)
