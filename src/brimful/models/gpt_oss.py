"""gpt-oss: attention with sinks and biases, and experts with biases in every block.

Source: ``transformers.models.gpt_oss``; OpenAI 2025, arXiv:2508.10925.
"""

from functools import partial

from brimful.models.architecture import HEAD_WIDTH, Architecture, Window
from brimful.models.decoder import pre_norms, read_decoder, repeated_layout, switched_attention
from brimful.models.experts import Experts, experts_everywhere, router
from brimful.models.layout import Layout, Parameter, Parameters
from brimful.models.spec import ModelSpec

MODEL_TYPE = "gpt_oss"
_DEFAULTS = {
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
}
"""Of ``GptOssConfig``."""


def layout(spec: ModelSpec) -> Layout:
    """Lay out the parameters: a sink for each head comes before attention's matrices."""
    return repeated_layout(
        spec,
        (Parameter("self_attn.sinks", (spec.num_heads,), "other"),),
        switched_attention(spec, default=True),
        _mixture(spec.hidden_size, experts_everywhere(spec, _DEFAULTS)),
        pre_norms(spec),
    )


def _mixture(hidden: int, found: Experts) -> Parameters:
    """Lay out the router and the stacks, [experts, inputs, outputs] unlike other mixtures'."""
    num_experts, width = found.num_experts, found.width
    stacks = {
        "gate_up_proj": (num_experts, hidden, 2 * width),
        "gate_up_proj_bias": (num_experts, 2 * width),
        "down_proj": (num_experts, width, hidden),
        "down_proj_bias": (num_experts, hidden),
    }
    return (
        *router("mlp.router", num_experts, hidden),
        Parameter("mlp.router.bias", (num_experts,), "router"),
        *(Parameter(f"mlp.experts.{name}", shape, "experts") for name, shape in stacks.items()),
    )


ARCHITECTURE = Architecture(
    model_type=MODEL_TYPE,
    read=partial(read_decoder, model_type=MODEL_TYPE, defaults=_DEFAULTS),
    layout=layout,
    experts=partial(experts_everywhere, defaults=_DEFAULTS),
    own_scores="sinks of attention",
    rotates=HEAD_WIDTH,
    window=Window(default=128, blocks="every-other"),
    groups_experts=True,
    fp32_norms=True,
    published="mxfp4",
)
