"""Mixtral type decoders: Mistral's attention, and routed experts in every block.

Source: ``transformers.models.mixtral``; Jiang et al. 2024, arXiv:2401.04088.
"""

from functools import partial
from typing import Any

from brimful.models.architecture import HEAD_WIDTH, ROUTED, Architecture, BlockCode, Shipped
from brimful.models.decoder import attention, pre_norms, read_decoder, repeated_layout
from brimful.models.experts import experts_everywhere, routed_stacks, router
from brimful.models.layout import Layout
from brimful.models.small_sizes import SmallSizes, mixture
from brimful.models.spec import ModelSpec

MODEL_TYPE = "mixtral"
_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
"""Of ``MixtralConfig``."""


def layout(spec: ModelSpec) -> Layout:
    """Lay out the parameters: the router of E h before the experts' 3 E h f."""
    hidden, num_experts = spec.hidden_size, experts_everywhere(spec, _DEFAULTS).num_experts
    return repeated_layout(
        spec,
        attention(spec, bias=False, output_bias=False),
        router("mlp.gate", num_experts, hidden),
        routed_stacks(num_experts, hidden, spec.intermediate_size),
        pre_norms(spec),
    )


def _small(sizes: SmallSizes, num_layers: int) -> dict[str, Any]:
    return {**mixture(sizes, num_layers), "num_local_experts": sizes.experts}


ARCHITECTURE = Architecture(
    model_type=MODEL_TYPE,
    read=partial(read_decoder, model_type=MODEL_TYPE, defaults=_DEFAULTS, nullable=("head_dim",)),
    layout=layout,
    experts=partial(experts_everywhere, defaults=_DEFAULTS),
    rotates=HEAD_WIDTH,
    groups_experts=True,
    tensor="beside-experts",
    is_staged=True,
    code=BlockCode(wide_shares=True),
    traced_as=MODEL_TYPE,
    traced=ROUTED,
    small=_small,
    shipped=Shipped(
        variants=("", "ep"),
        adapters=True,
        tunings=dict.fromkeys(
            ("lora-fp32-qkvo", "nf4-double-qkvo", "nf4-double-qkvo-norms"), ("",)
        ),
    ),
)
