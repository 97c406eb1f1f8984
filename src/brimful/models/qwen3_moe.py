"""Qwen3's mixtures of experts: Qwen3's attention, and narrow experts in most blocks.

Source: ``transformers.models.qwen3_moe``; Yang et al. 2025, arXiv:2505.09388.
"""

from functools import partial
from typing import Any

from brimful.models.architecture import HEAD_WIDTH, ROUTED, Architecture, BlockCode, Shipped, Window
from brimful.models.decoder import decoder_layout, gated_mlp, pre_norms, read_decoder
from brimful.models.experts import Experts, routed_stacks, router, sizes_of
from brimful.models.layout import Layout, Parameters
from brimful.models.qwen3 import normed_attention
from brimful.models.small_sizes import SmallSizes, mixture
from brimful.models.spec import ModelSpec

MODEL_TYPE = "qwen3_moe"
_ALIASES = {"num_local_experts": "num_experts"}
"""Another name that ``Qwen3MoeConfig`` takes."""
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": None,
}
"""Of ``Qwen3MoeConfig``."""


def experts(spec: ModelSpec) -> Experts:
    """Read the experts: in every ``decoder_sparse_step``-th block but ``mlp_only_layers``."""
    sizes = sizes_of(spec.hf_config, _DEFAULTS, _ALIASES)
    dense, step = sizes["mlp_only_layers"] or (), sizes["decoder_sparse_step"]
    return Experts(
        num_experts=sizes["num_experts"],
        num_experts_per_token=sizes["num_experts_per_tok"],
        width=sizes["moe_intermediate_size"],
        num_shared_experts=0,
        sparse_blocks=tuple(
            i for i in range(spec.num_layers) if i not in dense and (i + 1) % step == 0
        ),
    )


def layout(spec: ModelSpec) -> Layout:
    """Lay out the parameters: in a sparse block 3 E h f of experts, then the router of E h."""
    found = experts(spec)
    attention, norms = normed_attention(spec), pre_norms(spec)
    dense = gated_mlp(spec.hidden_size, spec.intermediate_size)
    sparse = _sparse_mlp(spec, found)
    return decoder_layout(
        spec,
        [
            (*attention, *(sparse if i in found.sparse_blocks else dense), *norms)
            for i in range(spec.num_layers)
        ],
    )


def _sparse_mlp(spec: ModelSpec, found: Experts) -> Parameters:
    hidden = spec.hidden_size
    return (
        *routed_stacks(found.num_experts, hidden, found.width),
        *router("mlp.gate", found.num_experts, hidden),
    )


def _small(sizes: SmallSizes, num_layers: int) -> dict[str, Any]:
    return {
        **mixture(sizes, num_layers),
        "num_experts": sizes.experts,
        "moe_intermediate_size": sizes.expert_width,
        "norm_topk_prob": True,
    }


ARCHITECTURE = Architecture(
    model_type=MODEL_TYPE,
    read=partial(read_decoder, model_type=MODEL_TYPE, defaults=_DEFAULTS),
    layout=layout,
    experts=experts,
    rotates=HEAD_WIDTH,
    window=Window(default=4096, is_switched=True),
    groups_experts=True,
    tensor="beside-experts",
    is_staged=True,
    code=BlockCode(norms_heads=True),
    traced_as=MODEL_TYPE,
    traced=ROUTED,
    small=_small,
    shipped=Shipped(variants=("", "ep"), adapters=True),
)
