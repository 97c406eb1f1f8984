"""DeepSeek-V3 type decoders: V2's blocks with more experts, whose router keeps a balance.

That balance, ``e_score_correction_bias``, is a buffer of one number per expert: training does not
reach it and it is no parameter here, although checkpoints hold it and the published count has it.
The modules that predict further tokens are not built.

Source: ``transformers.models.deepseek_v3``; DeepSeek-AI 2024, arXiv:2412.19437, section 2.
"""

from typing import Any

from brimful.errors import ModelConfigError
from brimful.models.architecture import LATENT_ROTARY, Architecture
from brimful.models.experts import Experts, sizes_of
from brimful.models.latent import latent_experts, latent_layout, read_latent
from brimful.models.layout import Layout
from brimful.models.spec import ModelSpec

MODEL_TYPE = "deepseek_v3"
_ALIASES = {"num_local_experts": "n_routed_experts"}
"""Another name that ``DeepseekV3Config`` takes."""
_DEFAULTS = {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "max_position_embeddings": 4096,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "topk_group": 4,
}
_LEAST_IN_GROUP = 2
"""A group of experts is judged by the best two of it."""


def read(name: str, config: dict[str, Any]) -> ModelSpec:
    """Take the dimensions out of a configuration, with the defaults of ``DeepseekV3Config``.

    Raises ModelConfigError: its experts do not fall into its groups.
    """
    found = _sizes(config)
    _check_groups(name, found)
    return read_latent(name, config, model_type=MODEL_TYPE, sizes=found)


def experts(spec: ModelSpec) -> Experts:
    """Read the experts: in every block from ``first_k_dense_replace`` on."""
    return latent_experts(spec, _sizes(spec.hf_config))


def layout(spec: ModelSpec) -> Layout:
    """Lay out the parameters; no MLP has a bias."""
    return latent_layout(spec, _sizes(spec.hf_config), mlp_bias=False)


def _check_groups(name: str, sizes: dict[str, Any]) -> None:
    num_experts, num_groups = sizes["n_routed_experts"], sizes["n_group"]
    if num_groups is None or sizes["topk_group"] is None:
        raise ModelConfigError(
            f"{name} has n_group={num_groups} and topk_group={sizes['topk_group']}; null is no "
            f"number of groups, write 1"
        )
    if num_experts % num_groups or num_experts < _LEAST_IN_GROUP * num_groups:
        raise ModelConfigError(
            f"{name} has n_group={num_groups} and n_routed_experts={num_experts}; give groups of "
            f"equally many experts, {_LEAST_IN_GROUP} or more"
        )
    if sizes["topk_group"] > num_groups:
        raise ModelConfigError(
            f"{name} has topk_group={sizes['topk_group']} and n_group={num_groups}; give at most "
            f"{num_groups}"
        )


def _sizes(config: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a configuration that say sizes, with the defaults of its class."""
    return sizes_of(config, _DEFAULTS, _ALIASES)


ARCHITECTURE = Architecture(
    model_type=MODEL_TYPE,
    read=read,
    layout=layout,
    experts=experts,
    sizes=_sizes,
    is_latent=True,
    rotates=LATENT_ROTARY,
    groups_experts=True,
    balanced_router=True,
    is_staged=True,
)
