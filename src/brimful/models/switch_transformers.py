"""Switch Transformers: T5 whose every few blocks route each token to one expert of many.

Source: ``transformers.models.switch_transformers``; Fedus et al. 2021, arXiv:2101.03961.
"""

from typing import Any

from brimful.models import t5
from brimful.models.spec import ModelSpec, ParameterCount

MODEL_TYPE = "switch_transformers"
REQUIRED = ()
DEFAULTS = {
    "d_model": 768,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 12,
    "num_sparse_encoder_layers": 3,
    "num_decoder_layers": 12,
    "num_sparse_decoder_layers": 3,
    "num_heads": 12,
    "num_experts": 8,
    "expert_capacity": 64,
    "router_bias": False,
    "vocab_size": 32128,
    "relative_attention_num_buckets": 32,
}


def read(name: str, config: dict[str, Any]) -> ModelSpec:
    """Take the dimensions out of a configuration, with the defaults of its class."""
    return t5.read_stacks(name, config, model_type=MODEL_TYPE, defaults=DEFAULTS)


def num_sparse(num_blocks: int, *, num_asked: int) -> int:
    """Count the blocks with experts among a stack's, as ``transformers`` places them.

    Every ``num_blocks // num_asked``-th block is sparse, the second of each group; where that is
    every block, all are.
    """
    step = num_blocks // num_asked if num_asked > 0 else num_blocks
    if step <= 0:
        return 0
    return sum(step == 1 or i % step == 1 for i in range(num_blocks))


def parameter_count(spec: ModelSpec) -> ParameterCount:
    """Count parameters: T5's, and in a sparse block E MLPs and a router of E (h + bias) instead."""
    sizes = t5.sizes_of(spec.hf_config, DEFAULTS)
    h, heads = spec.hidden_size, spec.num_heads
    attention, mlp = 4 * h * heads * spec.head_dim + h, 2 * h * spec.intermediate_size
    experts = sizes["num_experts"] * (mlp + h + bool(sizes["router_bias"]))
    num_decoder, num_encoder = t5.num_decoder_blocks(sizes), sizes["num_layers"]
    sparse = sum(
        num_sparse(num_blocks, num_asked=sizes[f"num_sparse_{stack}_layers"])
        for stack, num_blocks in (("encoder", num_encoder), ("decoder", num_decoder))
    )
    buckets = 2 * sizes["relative_attention_num_buckets"] * heads
    return ParameterCount(
        embedding=spec.vocab_size * h,
        block=2 * attention + mlp + h,
        num_blocks=num_decoder,
        other_blocks=num_encoder * (attention + mlp + h) + sparse * (experts - mlp) + buckets,
        final=2 * h,
        head=0 if spec.tied_embeddings else spec.vocab_size * h,
    )
