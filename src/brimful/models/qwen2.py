"""Qwen2 and Qwen2.5 type decoders: Llama's block with biases on queries, keys and values.

Source: ``transformers.models.qwen2``; Yang et al. 2024, arXiv:2407.10671.
"""

from functools import partial

from brimful.models.architecture import HEAD_WIDTH, Architecture, BlockCode, Window
from brimful.models.decoder import attention, gated_mlp, pre_norms, read_decoder, repeated_layout
from brimful.models.layout import Layout
from brimful.models.spec import ModelSpec

MODEL_TYPE = "qwen2"
_DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
}
"""Of ``Qwen2Config``."""


def layout(spec: ModelSpec) -> Layout:
    """Lay out the parameters: q, k and v always have a bias, o never."""
    return repeated_layout(
        spec,
        attention(spec, bias=True, output_bias=False),
        gated_mlp(spec.hidden_size, spec.intermediate_size),
        pre_norms(spec),
    )


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
    code=BlockCode(),
    traced_as="llama",
)
