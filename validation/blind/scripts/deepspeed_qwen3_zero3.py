"""Qwen3-32B from random weights by DeepSpeed ZeRO-3, as DeepSpeed's examples/sdma_allgather trains it."""

import deepspeed
import torch
from deepspeed import comm as dist
from transformers import AutoModelForCausalLM, Qwen3Config

SEQ = 1024
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": 1e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01},
    },
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": 3,
        "allgather_partitions": True,
        "allgather_bucket_size": 5e7,
        "overlap_comm": True,
        "reduce_scatter": True,
        "reduce_bucket_size": 5e7,
        "contiguous_gradients": True,
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_prefetch_bucket_size": 5e7,
        "stage3_param_persistence_threshold": 1e5,
        "sub_group_size": 1e12,
    },
}

deepspeed.init_distributed()
device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
torch.cuda.set_device(device)
config = Qwen3Config(
    vocab_size=151936,
    hidden_size=5120,
    intermediate_size=25600,
    num_hidden_layers=64,
    num_attention_heads=64,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=40960,
    tie_word_embeddings=False,
    use_cache=False,
)
config._attn_implementation = "eager"
config.torch_dtype = torch.bfloat16
with deepspeed.zero.Init(config_dict_or_path=CONFIG):
    model = AutoModelForCausalLM.from_config(config)
engine, *_ = deepspeed.initialize(
    model=model, model_parameters=list(model.parameters()), config=CONFIG
)
torch.cuda.reset_peak_memory_stats()
for _ in range(3):
    ids = torch.randint(0, 151936, (1, SEQ)).to(device)
    mask = torch.ones(1, SEQ, dtype=torch.long).to(device)
    out = engine(input_ids=ids, labels=ids, attention_mask=mask)
    engine.backward(out.loss)
    engine.step()
print(torch.cuda.max_memory_allocated() / 1e9)
