"""Tiny decoders of other kinds than in ``samples``: experts, caps, windows, sinks, latents."""

from brimful.models.config import read_config
from brimful.values.job import Adapter
from samples import make_job

COMMON = {
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 97,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
LATENT = {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 24,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
PLAIN = {name: value for name, value in COMMON.items() if name != "head_dim"}
WINDOW = 7
"""Of the decoders that have one: shorter than the rows of ``make_job``."""
CONFIGS = {
    "mistral": {**COMMON, "sliding_window": WINDOW},
    "qwen2": {**PLAIN, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    "qwen3": COMMON,
    "olmo2": PLAIN,
    "phi3": {**PLAIN, "sliding_window": WINDOW},
    "granite": {**PLAIN, "logits_scaling": 4.0, "embedding_multiplier": 6.0},
    "cohere": {**PLAIN, "tie_word_embeddings": True},
    "gemma2": {
        **COMMON,
        "query_pre_attn_scalar": 8,
        "final_logit_softcapping": 0.5,
        "attn_logit_softcapping": 0.3,
        "sliding_window": WINDOW,
        "tie_word_embeddings": True,
    },
    "mixtral": {
        **COMMON,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
    "qwen3_moe": {
        **COMMON,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
    },
    "deepseek_v3": {**PLAIN, **LATENT, "n_group": 4, "topk_group": 2},
    "deepseek_v2": {**PLAIN, **LATENT},
    "gpt_oss": {
        **COMMON,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": WINDOW,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
}
"""Caps so low that leaving one out would be seen at once."""
EAGER_ONLY = ("gemma2", "gpt_oss")


def make_decoder(model_type, **changes):
    return read_config(
        f"tiny-{model_type}",
        {"model_type": model_type, **CONFIGS.get(model_type, COMMON), **changes},
    )


def make_decoder_job(model_type, *, method="full", base="same", **changes):
    """Make a job; adapters of rank 4 beside every linear layer where the method has them."""
    adapter = None
    if method != "full":
        adapter = Adapter(
            rank=4,
            alpha=8.0,
            targets=("all-linear",),
            trained_modules=(),
            dtype="same",
            base=base,
            upcast="none",
            input_requires_grad=False,
        )
    model = changes.pop("model", None) or make_decoder(model_type)
    return make_job(model=model, method=method, adapter=adapter, **changes)
