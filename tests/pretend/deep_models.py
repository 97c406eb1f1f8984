"""Small models of every family whose tape can be unrolled, and the loop that trains them."""

import copy

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from brimful import pretend

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 97,
    "max_position_embeddings": 512,
}
SMALL_MOE = {**SMALL, "num_experts_per_tok": 2}
FAMILIES = {
    "llama": SMALL,
    "mixtral": {**SMALL_MOE, "num_local_experts": 4},
    "qwen3_moe": {**SMALL_MOE, "num_experts": 4, "moe_intermediate_size": 16},
    "gemma2": {**SMALL, "sliding_window": 8},
    "gpt_oss": {**SMALL_MOE, "num_local_experts": 4, "sliding_window": 8},
    "deepseek_v3": {
        **{name: value for name, value in SMALL_MOE.items() if name != "head_dim"},
        "num_key_value_heads": 4,
        "first_k_dense_replace": 2,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 16,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    },
    "bert": {
        **{n: v for n, v in SMALL.items() if n not in {"head_dim", "num_key_value_heads"}},
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
}
MOE = frozenset({"mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3"})
EAGER = frozenset({"gemma2", "gpt_oss"})
WORLD = 8


def make_config(family, num_blocks):
    return AutoConfig.for_model(family, num_hidden_layers=num_blocks, **FAMILIES[family])


def make_model(config):
    """Build a model on ``meta``; experts in bfloat16, for grouped products know nothing else."""
    family = config.model_type
    kind = AutoModelForSequenceClassification if family == "bert" else AutoModelForCausalLM
    options = {"attn_implementation": "eager" if family in EAGER else "sdpa"}
    if family in MOE:
        options["experts_implementation"] = "grouped_mm"
    with torch.device("meta"):
        model = kind.from_config(config, **options)
    model.train()
    return model.to(torch.bfloat16) if family in MOE else model


def checkpointed(model):
    """Recompute every block in backward, under whichever name transformers has for it."""
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})


def shard(model, mesh, *, reshard):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    blocks = model.bert.encoder.layer if hasattr(model, "bert") else model.model.layers
    for part in (*blocks, model):
        fully_shard(part, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)


def train(model, *, num_steps, num_micro_batches, autocast):
    is_classifier = hasattr(model, "bert")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(num_steps):
        for _ in range(num_micro_batches):
            ids = torch.zeros((2, 24), dtype=torch.int64, device="gpu:0")
            labels = ids[:, 0] if is_classifier else ids
            with torch.autocast("gpu", dtype=torch.bfloat16, enabled=autocast):
                loss = model(input_ids=ids, labels=labels, **_no_cache(is_classifier)).loss
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def _no_cache(is_classifier):
    return {} if is_classifier else {"use_cache": False}


def trace(  # noqa: PLR0913 - what the cases differ in
    config,
    *,
    checkpointing=False,
    reshard=None,
    mesh_shape=(WORLD,),
    num_steps=2,
    num_micro_batches=1,
):
    """Record training; ``reshard`` None: on one device."""
    model = make_model(copy.deepcopy(config))
    if checkpointing:
        checkpointed(model)
    is_sharded = reshard is not None
    with pretend.gpu(world_size=WORLD if is_sharded else 1, says_cuda=False) as run:
        if is_sharded:
            axes = ("replicate", "shard")[-len(mesh_shape) :]
            shard(model, run.mesh(mesh_shape, axes), reshard=reshard)
        model.to_empty(device="gpu:0")
        autocast = not is_sharded and config.model_type not in MOE
        train(model, num_steps=num_steps, num_micro_batches=num_micro_batches, autocast=autocast)
    return run.recording()
