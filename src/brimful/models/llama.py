"""Llama-type decoders: RMSNorm, rotary positions, SwiGLU, grouped-query attention.

Source: ``transformers.models.llama``; Touvron et al. 2023, arXiv:2302.13971 and 2307.09288.
"""

from functools import partial

from brimful.models.architecture import HEAD_WIDTH, Architecture, BlockCode, Shipped
from brimful.models.decoder import (
    gated_mlp,
    has,
    pre_norms,
    read_decoder,
    repeated_layout,
    switched_attention,
)
from brimful.models.layout import Layout
from brimful.models.small_sizes import own_head_width
from brimful.models.spec import ModelSpec

MODEL_TYPE = "llama"
_DEFAULTS = {"max_position_embeddings": 2048}
"""Of ``LlamaConfig``."""


def layout(spec: ModelSpec) -> Layout:
    """Lay out the parameters, biases where ``attention_bias`` or ``mlp_bias`` asks for them."""
    return repeated_layout(
        spec,
        switched_attention(spec),
        gated_mlp(spec.hidden_size, spec.intermediate_size, bias=has(spec, "mlp_bias")),
        pre_norms(spec),
    )


_RUNS_UNTIED = (
    "lora-fp32", "lora-qkvo", "lora-qv", "lora-half-qv", "nf4-double-qv", "lora-but-o",
    "nf4-double-but-o",
)  # fmt: skip
_RUNS = ("lora-fp32-qkvo", "lora-half-qkvo", "nf4-double-qkvo", "nf4-double-qkvo-norms")
ARCHITECTURE = Architecture(
    model_type=MODEL_TYPE,
    read=partial(
        read_decoder, model_type=MODEL_TYPE, defaults=_DEFAULTS,
        nullable=("num_key_value_heads", "head_dim"),
    ),
    layout=layout,
    required=(
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "vocab_size",
    ),
    rotates=HEAD_WIDTH,
    heads_cut_stream=True,
    tensor="whole",
    is_staged=True,
    code=BlockCode(),
    traced_as=MODEL_TYPE,
    small=own_head_width,
    shipped=Shipped(
        variants=("", "tied", "mha", "tied-mha", "tp", "tied-tp", "mha-tp", "tied-mha-tp"),
        before_ampere=("", "tied", "mha", "tp", "mha-tp"),
        on_cpu=True,
        adapters=True,
        tunings={
            **dict.fromkeys(_RUNS, ("", "tied")),
            **dict.fromkeys(_RUNS_UNTIED, ("",)),
        },
    ),
)  # fmt: skip
