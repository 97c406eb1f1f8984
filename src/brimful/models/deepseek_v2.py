"""DeepSeek-V2 type decoders: latent attention, shared and routed experts after some dense blocks.

Source: ``transformers.models.deepseek_v2``; DeepSeek-AI 2024, arXiv:2405.04434, section 2.
"""

from typing import Any

import msgspec

from brimful.models.architecture import LATENT_ROTARY, Architecture
from brimful.models.decoder import has
from brimful.models.experts import Experts, sizes_of
from brimful.models.latent import latent_experts, latent_layout, read_latent
from brimful.models.layout import Layout
from brimful.models.spec import ModelSpec

MODEL_TYPE = "deepseek_v2"
_ALIASES = {"num_experts": "n_routed_experts"}
"""Another name that ``DeepseekV2Config`` takes."""
_DEFAULTS = {
    "vocab_size": 102400,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "max_position_embeddings": 2048,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 0,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "moe_intermediate_size": 1407,
}


def read(name: str, config: dict[str, Any]) -> ModelSpec:
    """Take the dimensions out of a configuration, with the defaults of ``DeepseekV2Config``."""
    # The class overwrites a head_dim that is given; V3's does not.
    given = {field: value for field, value in config.items() if field != "head_dim"}
    spec = read_latent(name, given, model_type=MODEL_TYPE, sizes=_sizes(given))
    return msgspec.structs.replace(spec, hf_config=config)


def experts(spec: ModelSpec) -> Experts:
    """Read the experts: in every block from ``first_k_dense_replace`` on."""
    return latent_experts(spec, _sizes(spec.hf_config))


def layout(spec: ModelSpec) -> Layout:
    """Lay out the parameters, with biases of dense and shared MLPs where ``mlp_bias`` says so."""
    sizes = _sizes(spec.hf_config)
    return latent_layout(spec, sizes, mlp_bias=has(spec, "mlp_bias"))


def _sizes(config: dict[str, Any]) -> dict[str, Any]:
    return sizes_of(config, _DEFAULTS, _ALIASES)


ARCHITECTURE = Architecture(
    model_type=MODEL_TYPE,
    read=read,
    layout=layout,
    experts=experts,
    sizes=_sizes,
    required=("num_experts_per_tok",),  # its class leaves it null, and then it cannot be run
    is_latent=True,
    rotates=LATENT_ROTARY,
    heads_cut_stream=True,
    groups_experts=True,
    is_staged=True,
)
