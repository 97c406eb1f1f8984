"""Tiny decoders that make their masks themselves: sparse attention, recurrences, convolutions."""

MIXTURE = {
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
MAMBA = {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8, "mamba_n_heads": 8,
         "mamba_d_head": 8, "mamba_d_state": 8, "mamba_expand": 2, "n_groups": 1,
         "mamba_n_groups": 1, "chunk_size": 16, "mamba_chunk_size": 16}  # fmt: skip
LINEAR = {
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
          "v_head_dim": 8, "index_topk": 8, "index_n_heads": 2, "index_head_dim": 16,
          "n_group": 1, "topk_group": 1, "num_key_value_heads": 4}  # fmt: skip
SPARSE = {
    "deepseek_v32": {**LATENT, **MIXTURE},
    "glm_moe_dsa": {**LATENT, **MIXTURE},
    "deepseek_v4": {**LATENT, **MIXTURE},
}
HYBRID = {
    "nemotron_h": {
        **MIXTURE,
        **MAMBA,
        "layers_block_type": ["mamba", "moe", "attention"],
        "num_key_value_heads": 2,
        "head_dim": 8,
        "moe_shared_expert_intermediate_size": 16,
    },
    "qwen3_5_text": LINEAR,
    "qwen3_next": {**LINEAR, **MIXTURE, "shared_expert_intermediate_size": 16},
    "granitemoehybrid": {
        **MAMBA, "num_key_value_heads": 2, "layer_types": ["mamba", "attention", "mamba"],
        "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 16,
    },
    "lfm2": {"num_key_value_heads": 2, "layer_types": ["conv", "full_attention", "conv"]},
    "lfm2_moe": {
        **MIXTURE, "num_key_value_heads": 2, "num_dense_layers": 1,
        "layer_types": ["conv", "full_attention", "conv"],
    },
}  # fmt: skip
"""Decoders of which some blocks do something else than attend."""
