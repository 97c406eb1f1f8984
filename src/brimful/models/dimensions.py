"""Which dimensions go together. Checked once, when a configuration has been read."""

from brimful.errors import ModelConfigError
from brimful.models.architectures import record_of
from brimful.models.experts import Experts
from brimful.models.spec import ModelSpec


def check_dimensions(spec: ModelSpec) -> None:
    """Refuse dimensions that contradict each other."""
    record = record_of(spec.model_type)
    if record.heads_cut_stream and spec.hidden_size % spec.num_heads:
        raise ModelConfigError(
            f"{spec.name} has num_heads={spec.num_heads}, which does not divide "
            f"hidden_size={spec.hidden_size}; change one of them"
        )
    if spec.num_heads % spec.num_kv_heads:
        raise ModelConfigError(
            f"{spec.name} has num_kv_heads={spec.num_kv_heads}, which does not divide "
            f"num_heads={spec.num_heads}; change one of them"
        )
    if record.rotates and spec.head_dim % 2:
        raise ModelConfigError(
            f"{spec.name} has head_dim={spec.head_dim} and rotary positions need an even one; "
            f"change {record.rotates}"
        )


def check_routing(name: str, experts: Experts) -> None:
    """Refuse a mixture that sends a token to more experts than it has."""
    if experts.num_experts_per_token > experts.num_experts:
        raise ModelConfigError(
            f"{name} has num_experts_per_tok={experts.num_experts_per_token} and "
            f"{experts.num_experts} experts; give at most {experts.num_experts}"
        )
