"""A model as arguments of Megatron-LM's ``pretrain_gpt.py``.

Source: ``megatron/training/arguments.py`` of Megatron-LM 0.20; how such models are trained there:
``examples/`` of the same.
"""

from collections.abc import Mapping

from brimful.errors import UnsupportedError
from brimful.models.config import experts_of
from brimful.models.spec import ModelSpec

_GATED = (
    "--swiglu", "--normalization", "RMSNorm", "--disable-bias-linear",
    "--position-embedding-type", "rope", "--hidden-dropout", "0", "--attention-dropout", "0",
)  # fmt: skip
"""Of Llama and what came after it."""
_KINDS: Mapping[str, tuple[str, ...]] = {
    "llama": _GATED,
    "mistral": _GATED,
    "mixtral": _GATED,
    "qwen2": (*_GATED, "--add-qkv-bias"),
    "qwen3": (*_GATED, "--qk-layernorm"),
    "qwen3_moe": (*_GATED, "--qk-layernorm"),
    "gpt2": ("--position-embedding-type", "learned_absolute"),
}
"""What is not a size, by architecture."""


def model_arguments(model: ModelSpec) -> tuple[str, ...]:
    """Return the arguments that make a model.

    Args:
        model: One of an architecture that Megatron's own GPT is.

    Raises:
        UnsupportedError: It is another.
    """
    if model.model_type not in _KINDS:
        known = ", ".join(_KINDS)
        raise UnsupportedError(
            f"{model.name} (model_type={model.model_type}) is not said to Megatron-LM by this "
            f"version, which says {known}; give a command line to brimful estimate --from"
        )
    words = [
        "--num-layers", model.num_layers, "--hidden-size", model.hidden_size,
        "--num-attention-heads", model.num_heads, "--ffn-hidden-size", model.intermediate_size,
        "--kv-channels", model.head_dim, *_KINDS[model.model_type],
    ]  # fmt: skip
    if model.num_kv_heads != model.num_heads:
        words += ["--group-query-attention", "--num-query-groups", model.num_kv_heads]
    if not model.tied_embeddings:
        words.append("--untie-embeddings-and-output-weights")
    if "rope" in words and (base := model.hf_config.get("rope_theta")):
        words += ["--rotary-base", int(base)]
    experts = experts_of(model)
    if experts.num_experts:
        width = model.hf_config.get("moe_intermediate_size", model.intermediate_size)
        words += [
            "--num-experts", experts.num_experts, "--moe-router-topk",
            experts.num_experts_per_token, "--moe-ffn-hidden-size", width, "--moe-grouped-gemm",
            "--moe-token-dispatcher-type", "alltoall",
        ]  # fmt: skip
    return tuple(map(str, words))
