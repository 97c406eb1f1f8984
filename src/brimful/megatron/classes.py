"""What the classes of an architecture do that no configuration says, for its arguments.

One record each, read off ``modeling_*.py`` of transformers 5.23; what a configuration says is read
from it (``arguments.py``). An architecture that Megatron-LM's arguments do not make stands with
what is in its way, as ``megatron/training/arguments.py`` of Megatron-LM 0.20 has no word for it.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from brimful.errors import UnsupportedError
from brimful.models.spec import ModelSpec

Router = Literal["softmax", "softmax as it is", "biased softmax", "sigmoid"]
"""What experts are chosen by: of the chosen ones' scores the softmax; of all, normed or not; a
softmax to which a bias is added for the choice alone; a sigmoid with such a bias."""
_RMS = ("--normalization", "RMSNorm")
_ROPE = ("--position-embedding-type", "rope")
_NO_DROPOUT = ("--hidden-dropout", "0", "--attention-dropout", "0")


class Facts(NamedTuple):
    """What classes do.

    Attributes:
        biases: Fields that say whether there are biases: of queries, keys and values; of what
            attention puts out; of MLPs. Empty: none are; ``True``: they are in any case.
        norms_heads: Whether queries and keys are normed, head by head; a field that says it.
        activation: Filled in for ``hidden_act``.
        is_gated: Whether what is activated gates another product.
        router: Of mixtures.
        counts_balance: Whether that bias is among the parameters.
        is_latent: Whether attention goes by way of latents.
        words: What else, in any case.
        filled: Fields that decide bytes or operations, and what is filled in where a
            configuration says nothing.
    """

    biases: tuple[str | bool, str | bool, str | bool] = ("", "", "")
    norms_heads: bool | str = False
    activation: str = "silu"
    is_gated: bool = True
    router: Router = "softmax"
    counts_balance: bool = False
    is_latent: bool = False
    words: tuple[str, ...] = (*_RMS, *_ROPE, *_NO_DROPOUT)
    filled: Mapping[str, Any] = {}


_UNSCALED = {"attention_multiplier": 1.0}
_HALF = {"partial_rotary_factor": 0.5}
_LLAMA = Facts(biases=("attention_bias", "attention_bias", "mlp_bias"))
_LATENT = Facts(("attention_bias", "attention_bias", ""), router="sigmoid", is_latent=True)
_ERNIE = Facts(("use_bias",) * 3, words=(*_LLAMA.words, "--rotary-interleaved"))
_FACTS: Mapping[str, Facts] = {
    "arcee": _LLAMA._replace(activation="relu2", is_gated=False),
    "deepseek_v2": _LATENT._replace(
        biases=("attention_bias", "attention_bias", "mlp_bias"), router="softmax as it is"
    ),
    "deepseek_v3": _LATENT,
    "dots1": Facts(
        ("attention_bias", "attention_bias", ""), norms_heads=True, router="sigmoid"
    ),
    "ernie4_5": _ERNIE,
    "ernie4_5_moe": _ERNIE._replace(
        router="biased softmax", counts_balance=True,
        filled={"moe_layer_start_index": 1, "moe_layer_interval": 1, "moe_num_shared_experts": 2},
    ),
    "glm4_moe": Facts(
        ("attention_bias", "", ""), norms_heads="use_qk_norm", router="sigmoid",
        filled={**_HALF, "first_k_dense_replace": 1, "n_shared_experts": 1},
    ),
    "glm4_moe_lite": _LATENT._replace(
        filled={"first_k_dense_replace": 1, "n_shared_experts": 1}
    ),
    "gpt2": Facts(
        (True, True, True), activation="gelu_new", is_gated=False,
        words=("--position-embedding-type", "learned_absolute"),
    ),
    "gpt_bigcode": Facts(
        (True, True, True), activation="gelu_pytorch_tanh", is_gated=False,
        words=("--position-embedding-type", "learned_absolute"),
    ),
    "gpt_oss": Facts(
        (True, True, True),
        words=(
            "--quick-geglu", "--glu-linear-offset", "1.0", "--activation-func-clamp-value", "7.0",
            "--no-bias-dropout-fusion", "--add-qkv-bias", "--softmax-type", "learnable",
            "--normalization", "RMSNorm", "--position-embedding-type", "yarn", *_NO_DROPOUT,
        ),
    ),
    "granite": _LLAMA._replace(filled=_UNSCALED),
    "granitemoe": Facts(("attention_bias", "attention_bias", ""), filled=_UNSCALED),
    "llama": _LLAMA,
    "ministral3": Facts(),
    "mistral": Facts(),
    "mixtral": Facts(),
    "nemotron": _LLAMA._replace(
        activation="relu2", is_gated=False, filled=_HALF,
        words=("--apply-layernorm-1p", *_ROPE, *_NO_DROPOUT),
    ),
    "phi3": Facts(),
    "qwen2": Facts((True, "", "")),
    "qwen3": Facts(("attention_bias", "attention_bias", ""), norms_heads=True),
    "qwen3_moe": Facts(
        ("attention_bias", "attention_bias", ""), norms_heads=True,
        filled={"norm_topk_prob": False},
    ),
    "seed_oss": Facts(
        ("attention_bias", "attention_out_bias", "mlp_bias"), filled={"attention_bias": True}
    ),
    "smollm3": _LLAMA._replace(filled={"no_rope_layer_interval": 4}),
    "stablelm": Facts(
        ("use_qkv_bias", "", ""), words=(*_ROPE, *_NO_DROPOUT),
        filled={"partial_rotary_factor": 0.25},
    ),
    "starcoder2": Facts(
        ("use_bias",) * 3, activation="gelu_pytorch_tanh", is_gated=False,
        words=(*_ROPE, *_NO_DROPOUT), filled={"use_bias": True},
    ),
}  # fmt: skip
_BEHIND = "norms behind attention and MLP"
_ACROSS = "norms of queries and keys across all heads"
_PARALLEL = "attention and MLP beside each other"
_RECURRENT = "blocks without attention"
_DISTANCES = "a bias of scores by distance (ALiBi)"
_WITHOUT: Mapping[str, str] = {
    "apertus": "xIELU, whose shape is learnt",
    **dict.fromkeys(("bloom", "mpt"), _DISTANCES),
    **dict.fromkeys(("codegen", "cohere", "cohere2", "gptj", "phi"), _PARALLEL),
    "dbrx": "LayerNorm without biases, and a clip of queries, keys and values",
    **dict.fromkeys(("exaone4", "gemma2", "gemma3_text", "glm4", "olmo3"), _BEHIND),
    "falcon": _PARALLEL,
    "gemma": "an embedding times the root of its width, and a gate of GELU",
    **dict.fromkeys(("gemma3n_text", "gemma4_text"), "embeddings of each layer"),
    "gpt_neo": "scores without a scale",
    "gpt_neox": "attention and MLP beside each other, or an exact GELU",
    **dict.fromkeys(
        ("hunyuan_v1_dense", "hunyuan_v1_moe"), "norms of queries and keys behind their rotation"
    ),
    "llama4_text": "attention in chunks, and a scale of queries by position",
    "minicpm3": "a scale of the residual stream",
    "mimo_v2_flash": "heads of other widths in layers with windows",
    "minimax_m2": _ACROSS,
    "olmo": "LayerNorm without parameters",
    "olmo2": f"{_BEHIND}, and {_ACROSS}",
    "olmoe": _ACROSS,
    **dict.fromkeys(("opt", "xglm"), "a table of positions with an offset"),
    "phimoe": "a bias of the output layer",
    **dict.fromkeys(
        ("bamba", "falcon_h1", "granitemoehybrid", "jamba", "lfm2", "lfm2_moe", "nemotron_h",
         "zamba2"), _RECURRENT,
    ),
}  # fmt: skip
"""What of an architecture has no argument of ``pretrain_gpt.py``."""
_GATED_SHARED = "--moe-shared-expert-gate"
_LINEAR = "--experimental-attention-variant gated_delta_net"
_SPARSE = "--experimental-attention-variant dsa"
_NO_FORMULA: Mapping[str, str] = {
    "deepseek_v32": _SPARSE,
    "deepseek_v4": _SPARSE,
    "glm_moe_dsa": _SPARSE,
    "qwen2_moe": _GATED_SHARED,
    **dict.fromkeys(("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"), _LINEAR),
}
"""Of what has one, which has no formula here."""


def facts_of(model: ModelSpec) -> Facts:
    """Return what the classes of a model do.

    Raises UnsupportedError: Megatron-LM's arguments do not make it, or nobody read them.
    """
    kind = model.model_type
    if (found := _FACTS.get(kind)) is not None:
        return found
    if flag := _NO_FORMULA.get(kind):
        raise unsaid(model, f"it takes {flag}, which has no formula here")
    if what := _WITHOUT.get(kind):
        raise unsaid(model, f"it has {what}, which no argument of pretrain_gpt.py says")
    raise unsaid(model, "what its classes do was not read by this version")


def unsaid(model: ModelSpec, why: str) -> UnsupportedError:
    """Build the error for a model that Megatron-LM's arguments do not make."""
    return UnsupportedError(
        f"{model.name} (model_type={model.model_type}) is not said to Megatron-LM: {why}; give a "
        f"command line to brimful estimate --from"
    )
