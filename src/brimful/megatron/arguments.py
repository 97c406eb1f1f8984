"""A model as arguments of Megatron-LM's ``pretrain_gpt.py``.

Source: ``megatron/training/arguments.py`` of Megatron-LM 0.20; how such models are trained there:
``examples/`` of the same.
"""

from collections.abc import Mapping
from itertools import groupby

from brimful.errors import UnsupportedError
from brimful.models.architectures import record_of
from brimful.models.config import experts_of
from brimful.models.experts import Experts
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
    "deepseek_v3": (
        *_GATED, "--multi-latent-attention", "--qk-layernorm", "--moe-router-score-function",
        "sigmoid", "--moe-router-enable-expert-bias",
    ),
    "gpt_oss": (
        "--quick-geglu", "--glu-linear-offset", "1.0", "--activation-func-clamp-value", "7.0",
        "--no-bias-dropout-fusion",
        "--add-qkv-bias", "--softmax-type", "learnable", "--window-attn-skip-freq", "2",
        "--normalization", "RMSNorm", "--position-embedding-type", "yarn", "--hidden-dropout", "0",
        "--attention-dropout", "0",
    ),
    "gpt2": ("--position-embedding-type", "learned_absolute"),
}  # fmt: skip
"""What is not a size, by architecture."""
"""Tokens that gpt-oss looks at in every other layer, where a configuration says nothing."""


def model_arguments(model: ModelSpec) -> tuple[str, ...]:
    """Return the arguments that make a model.

    ``model``: one of an architecture that Megatron's own GPT is.
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
        words += [
            "--num-experts", experts.num_experts, "--moe-router-topk",
            experts.num_experts_per_token, "--moe-ffn-hidden-size", experts.width,
            "--moe-grouped-gemm", "--moe-token-dispatcher-type", "alltoall",
        ]  # fmt: skip
        words += _beside_experts(experts, model.num_layers)
    if "--multi-latent-attention" in words:
        words += _latent(model)
    window = model.hf_config.get("sliding_window", record_of(model.model_type).window.default)
    if "--window-attn-skip-freq" in words and window:  # a token looks at itself, too
        words += ["--window-size", f"{window - 1},0"]
    return tuple(map(str, words))


def _beside_experts(experts: Experts, num_layers: int) -> list[object]:
    """Return what says which layers are dense, and that experts are shared."""
    words: list[object] = []
    if len(experts.sparse_blocks) < num_layers:
        runs = groupby(range(num_layers), key=lambda layer: int(layer in experts.sparse_blocks))
        listed = "+".join(f"[{is_sparse}]*{len([*layers])}" for is_sparse, layers in runs)
        words += ["--moe-layer-freq", f"({listed})"]
    if experts.num_shared_experts:
        words += [
            "--moe-shared-expert-intermediate-size", experts.num_shared_experts * experts.width,
        ]  # fmt: skip
    return words


def _latent(model: ModelSpec) -> list[object]:
    config = record_of(model.model_type).sizes(model.hf_config)
    query = ["--q-lora-rank", config["q_lora_rank"]] if config.get("q_lora_rank") else []
    return [
        *query, "--kv-lora-rank", config["kv_lora_rank"], "--qk-head-dim",
        config["qk_nope_head_dim"], "--qk-pos-emb-head-dim", config["qk_rope_head_dim"],
        "--v-head-dim", config["v_head_dim"],
    ]  # fmt: skip
