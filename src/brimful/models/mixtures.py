"""The architectures with experts that this project knows, by ``model_type``."""

from brimful.models import (
    deepseek_v2,
    deepseek_v3,
    gpt_oss,
    mixtral,
    qwen3_moe,
    switch_transformers,
)
from brimful.models.experts import NO_EXPERTS, Experts
from brimful.models.names import NUM_EXPERTS
from brimful.models.spec import ModelSpec

GROUPED = frozenset({"mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss"})
"""Those whose experts run as one grouped product, behind a router that says its logits and choices:
of any of them at a time, and balanced on request."""
_MODULES = (deepseek_v2, deepseek_v3, gpt_oss, mixtral, qwen3_moe, switch_transformers)
MIXTURES = {module.MODEL_TYPE: module for module in _MODULES}
"""Each says of a model how many experts it has, and where."""


def has_experts(spec: ModelSpec) -> bool:
    """Whether a model has experts, whether this project knows its architecture or not."""
    return any((spec.hf_config.get(name) or 0) > 1 for name in NUM_EXPERTS)


def known_experts(spec: ModelSpec) -> Experts:
    """Read the experts of a model; ``NO_EXPERTS`` where its architecture is none of these."""
    if spec.model_type not in MIXTURES:
        return NO_EXPERTS
    experts: Experts = MIXTURES[spec.model_type].experts(spec)
    return experts
