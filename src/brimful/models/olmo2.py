"""OLMo 2 type decoders: RMSNorm after each part, and over all queries and all keys together.

Source: ``transformers.models.olmo2``; OLMo et al. 2025, arXiv:2501.00656.
"""

from functools import partial

from brimful.models.architecture import CUT_STREAM, Architecture, BlockCode, Shipped
from brimful.models.decoder import (
    gated_mlp,
    head_norms,
    key_width,
    norms,
    query_width,
    read_decoder,
    repeated_layout,
    switched_attention,
)
from brimful.models.layout import Layout
from brimful.models.small_sizes import heads_cut_the_stream
from brimful.models.spec import ModelSpec

MODEL_TYPE = "olmo2"
_DEFAULTS = {
    "vocab_size": 50304,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}
"""Of ``Olmo2Config``."""


def layout(spec: ModelSpec) -> Layout:
    """Lay out the parameters: the norms of queries and keys are A d and K d wide."""
    return repeated_layout(
        spec,
        switched_attention(spec),
        head_norms(query_width(spec), key_width(spec)),
        gated_mlp(spec.hidden_size, spec.intermediate_size),
        norms(spec, "post_attention_layernorm", "post_feedforward_layernorm"),
    )


ARCHITECTURE = Architecture(
    model_type=MODEL_TYPE,
    read=partial(
        read_decoder, model_type=MODEL_TYPE, defaults=_DEFAULTS, nullable=("num_key_value_heads",)
    ),
    layout=layout,
    rotates=CUT_STREAM,
    tensor="whole",
    is_staged=True,
    code=BlockCode(is_normed_before=False, norms_heads=True, is_wide=True),
    traced_as=MODEL_TYPE,
    small=heads_cut_the_stream,
    shipped=Shipped(variants=("", "narrow")),
)
