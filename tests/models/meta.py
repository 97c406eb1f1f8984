"""Tiny configurations of every architecture, and what ``transformers`` builds of a model."""

import json
from functools import lru_cache

from brimful.models.own_task import is_encoder, is_encoder_decoder

DECODER = {
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
STACKS = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 80,
    "num_heads": 4,
    "num_layers": 2,
    "vocab_size": 97,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}
LATENT = {
    **DECODER,
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}
"""Key heads count for nothing where keys come out of a latent."""
SMALL = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "phi3", "olmo2", "gemma2"), DECODER),
    "mixtral": {**DECODER, "num_local_experts": 4},
    "qwen3_moe": {**DECODER, "num_experts": 8, "moe_intermediate_size": 24},
    "deepseek_v2": LATENT,
    "deepseek_v3": {**LATENT, "n_group": 1, "topk_group": 1},
    "gpt_oss": {**DECODER, "head_dim": 8, "num_local_experts": 4},
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 97, "n_positions": 512},
    "bert": {
        "hidden_size": 32,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "vocab_size": 97,
    },
    "t5": STACKS,
    "switch_transformers": {
        **STACKS,
        "num_layers": 4,
        "num_decoder_layers": 4,
        "num_sparse_encoder_layers": 2,
        "num_sparse_decoder_layers": 1,
        "num_experts": 3,
    },
}


def build_from(model_type, fields):
    """Build a model on the meta device from fields of its configuration."""
    import torch
    import transformers
    from transformers import AutoConfig

    auto = transformers.AutoModelForCausalLM
    if is_encoder_decoder(model_type):
        auto = transformers.AutoModelForSeq2SeqLM
    elif is_encoder(model_type):
        auto = transformers.AutoModelForSequenceClassification
    with torch.device("meta"):
        return auto.from_config(AutoConfig.for_model(model_type, **fields))


@lru_cache(maxsize=4)
def _build(model_type, fields):
    return build_from(model_type, json.loads(fields))


def build(spec):
    """Build a model on the meta device, as its usual task's class does."""
    model = _build(spec.model_type, json.dumps(spec.hf_config))
    head = model.get_output_embeddings()
    if spec.model_type == "t5" and not spec.tied_embeddings:
        import torch

        # T5Config ties in any case and leaves it to the checkpoint to untie.
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
    return model


def named_shapes(spec):
    return [(name, tuple(p.shape)) for name, p in build(spec).named_parameters()]


KNOWN = ("Embedding", "Linear", "Conv1D", "LayerNorm")


def types_of(spec):
    """Name the class of the module that holds each parameter: a known one that it derives from."""
    model = build(spec)
    found = {}
    for name, _ in model.named_parameters():
        bases = [base.__name__ for base in type(model.get_submodule(name.rpartition(".")[0])).mro()]
        found[name] = next((base for base in bases if base in KNOWN), bases[0])
    return found
