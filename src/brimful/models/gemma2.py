"""Gemma 2 type decoders: RMSNorm before and after each part, heads of their own width, tied.

Source: ``transformers.models.gemma2``; Gemma Team 2024, arXiv:2408.00118.
"""

from functools import partial

from brimful.models.architecture import (
    HEAD_WIDTH,
    ONE_KERNEL_GELU,
    Architecture,
    Shipped,
    Traced,
    Window,
)
from brimful.models.decoder import (
    gated_mlp,
    norms,
    read_decoder,
    repeated_layout,
    switched_attention,
)
from brimful.models.layout import Layout
from brimful.models.small_sizes import own_head_width
from brimful.models.spec import ModelSpec

MODEL_TYPE = "gemma2"
_DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
"""Of ``Gemma2Config``."""
_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


def layout(spec: ModelSpec) -> Layout:
    """Lay out the parameters: four norms of h in each block."""
    return repeated_layout(
        spec,
        switched_attention(spec),
        gated_mlp(spec.hidden_size, spec.intermediate_size),
        norms(spec, *_NORMS),
    )


ARCHITECTURE = Architecture(
    model_type=MODEL_TYPE,
    read=partial(read_decoder, model_type=MODEL_TYPE, defaults=_DEFAULTS),
    layout=layout,
    own_scores="cap on scores",
    rotates=HEAD_WIDTH,
    heads_cut_stream=True,
    window=Window(default=4096, blocks="every-other"),
    tensor="whole",
    scaled_embedding=True,
    traced_as=MODEL_TYPE,
    traced={"hidden_activation": Traced("gelu_pytorch_tanh", ONE_KERNEL_GELU)},
    caps=("attn_logit_softcapping", "final_logit_softcapping"),
    small=own_head_width,
    shipped=Shipped(variants=("tied",), adapters=True),
)
