"""Which dimensions go together. Checked once, when a configuration has been read."""

from brimful.errors import ModelConfigError
from brimful.models.experts import Experts
from brimful.models.spec import ModelSpec

_CUT_UP = frozenset({"bert", "deepseek_v2", "gemma2", "gpt2", "llama"})
"""Architectures whose heads cut up the residual stream, or whose class insists that they could."""
_ROTARY_WIDTHS = {
    **dict.fromkeys(
        ("gemma2", "gpt_oss", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"),
        "head_dim, hidden_size or num_attention_heads",
    ),
    **dict.fromkeys(("olmo2", "phi3"), "hidden_size or num_attention_heads"),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), "qk_rope_head_dim"),
}
"""Architectures of ours that rotate pairs of a head's numbers; the fields that say its width."""


def check_dimensions(spec: ModelSpec) -> None:
    """Refuse dimensions that contradict each other.

    Raises:
        ModelConfigError: One does not divide another, or is odd where it must be even.
    """
    if spec.model_type in _CUT_UP and spec.hidden_size % spec.num_heads:
        raise ModelConfigError(
            f"{spec.name} has num_heads={spec.num_heads}, which does not divide "
            f"hidden_size={spec.hidden_size}; change one of them"
        )
    if spec.num_heads % spec.num_kv_heads:
        raise ModelConfigError(
            f"{spec.name} has num_kv_heads={spec.num_kv_heads}, which does not divide "
            f"num_heads={spec.num_heads}; change one of them"
        )
    if spec.model_type in _ROTARY_WIDTHS and spec.head_dim % 2:
        raise ModelConfigError(
            f"{spec.name} has head_dim={spec.head_dim} and rotary positions need an even one; "
            f"change {_ROTARY_WIDTHS[spec.model_type]}"
        )


def check_routing(name: str, experts: Experts) -> None:
    """Refuse a mixture that sends a token to more experts than it has.

    Raises:
        ModelConfigError: It does.
    """
    if experts.num_experts_per_token > experts.num_experts:
        raise ModelConfigError(
            f"{name} has num_experts_per_tok={experts.num_experts_per_token} and "
            f"{experts.num_experts} experts; give at most {experts.num_experts}"
        )
