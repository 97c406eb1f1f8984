"""Mistral type decoders: Llama's block with fewer key heads and no biases.

Source: ``transformers.models.mistral``; Jiang et al. 2023, arXiv:2310.06825.
"""

from functools import partial

from brimful.models.architecture import HEAD_WIDTH, Architecture, BlockCode, Window
from brimful.models.decoder import attention, gated_mlp, pre_norms, read_decoder, repeated_layout
from brimful.models.layout import Layout
from brimful.models.spec import ModelSpec

MODEL_TYPE = "mistral"
_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}
"""Of ``MistralConfig``."""


def layout(spec: ModelSpec) -> Layout:
    """Lay out the parameters: nothing has a bias."""
    return repeated_layout(
        spec,
        attention(spec, bias=False, output_bias=False),
        gated_mlp(spec.hidden_size, spec.intermediate_size),
        pre_norms(spec),
    )


ARCHITECTURE = Architecture(
    model_type=MODEL_TYPE,
    read=partial(read_decoder, model_type=MODEL_TYPE, defaults=_DEFAULTS, nullable=("head_dim",)),
    layout=layout,
    rotates=HEAD_WIDTH,
    window=Window(default=4096),
    tensor="whole",
    is_staged=True,
    code=BlockCode(),
    traced_as="llama",
)
