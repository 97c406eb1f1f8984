"""Multi-head latent attention and DeepSeek's mixtures, which V2 and V3 share.

Queries, keys and values go through narrow latents. Source: DeepSeek-AI 2024, arXiv:2405.04434,
section 2.1; the attention classes of ``transformers.models.deepseek_v2`` and ``deepseek_v3``.
"""

from typing import Any

from brimful.models.decoder import decoder_layout, gated_mlp, pre_norms, read_decoder
from brimful.models.experts import Experts, routed_stacks, router
from brimful.models.layout import Layout, Parameters, linear, rms_norm
from brimful.models.spec import ModelSpec


def read_latent(
    name: str, config: dict[str, Any], *, model_type: str, sizes: dict[str, Any]
) -> ModelSpec:
    """Take the dimensions out; ``head_dim`` is the rotary part where nothing else is said."""
    defaults = {**sizes, "head_dim": sizes["qk_rope_head_dim"]}
    return read_decoder(
        name,
        config,
        model_type=model_type,
        defaults=defaults,
        nullable=("num_key_value_heads", "head_dim"),
    )


def latent_experts(spec: ModelSpec, sizes: dict[str, Any]) -> Experts:
    """Read the experts: in every block from ``first_k_dense_replace`` on."""
    return Experts(
        num_experts=sizes["n_routed_experts"],
        num_experts_per_token=sizes["num_experts_per_tok"],
        width=sizes["moe_intermediate_size"],
        num_shared_experts=sizes["n_shared_experts"],
        sparse_blocks=tuple(range(sizes["first_k_dense_replace"], spec.num_layers)),
    )


def latent_layout(spec: ModelSpec, sizes: dict[str, Any], *, mlp_bias: bool) -> Layout:
    """Lay out a decoder with latent attention, dense blocks first.

    ``mlp_bias``: whether dense and shared MLPs have biases.
    """
    experts = latent_experts(spec, sizes)
    attention, norms = _attention(spec, sizes), pre_norms(spec)
    dense = gated_mlp(spec.hidden_size, spec.intermediate_size, bias=mlp_bias)
    sparse = _mixture(spec, experts, bias=mlp_bias)
    return decoder_layout(
        spec,
        [
            (*attention, *(sparse if i in experts.sparse_blocks else dense), *norms)
            for i in range(spec.num_layers)
        ],
    )


def _attention(spec: ModelSpec, sizes: dict[str, Any]) -> Parameters:
    """Lay out: q over its latent, k and v over theirs with the shared rotary key, then o."""
    hidden, heads, latent = spec.hidden_size, spec.num_heads, sizes["kv_lora_rank"]
    unrotated, value = sizes["qk_nope_head_dim"], sizes["v_head_dim"]
    rotary, bias = sizes["qk_rope_head_dim"], bool(sizes.get("attention_bias", False))
    return (
        *_queries(hidden, heads * (unrotated + rotary), latent=sizes["q_lora_rank"], bias=bias),
        *linear("self_attn.kv_a_proj_with_mqa", hidden, latent + rotary, bias=bias),
        *rms_norm("self_attn.kv_a_layernorm", latent),
        *linear("self_attn.kv_b_proj", latent, heads * (unrotated + value)),
        *linear("self_attn.o_proj", heads * value, hidden, bias=bias),
    )


def _queries(hidden: int, width: int, *, latent: int | None, bias: bool) -> Parameters:
    """Lay out the queries' projection: over a latent, or, where that is null, straight."""
    if latent is None:
        return linear("self_attn.q_proj", hidden, width)
    return (
        *linear("self_attn.q_a_proj", hidden, latent, bias=bias),
        *rms_norm("self_attn.q_a_layernorm", latent),
        *linear("self_attn.q_b_proj", latent, width),
    )


def _mixture(spec: ModelSpec, experts: Experts, *, bias: bool) -> Parameters:
    """Lay out routed experts, their router, and the shared ones as one MLP of their joint width."""
    hidden, shared = spec.hidden_size, experts.num_shared_experts * experts.width
    return (
        *routed_stacks(experts.num_experts, hidden, experts.width),
        *router("mlp.gate", experts.num_experts, hidden),
        *gated_mlp(hidden, shared, bias=bias, name="mlp.shared_experts"),
    )
