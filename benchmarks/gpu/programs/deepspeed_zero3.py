"""DeepSpeed ZeRO-3 on one device: a 1.1B Llama made under zero.Init, bf16, PyTorch's Adam."""

import os

import deepspeed
import torch
from transformers import LlamaConfig, LlamaForCausalLM

os.environ.update(
    RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29603"
)
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22,
    num_attention_heads=32, num_key_value_heads=4, use_cache=False,
)  # fmt: skip
ds_config = {
    "train_micro_batch_size_per_gpu": 4,
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": 3,
        "reduce_bucket_size": 50_000_000,
        "stage3_prefetch_bucket_size": 20_000_000,
        "stage3_max_live_parameters": 200_000_000,
    },
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}},
    "gradient_clipping": 1.0,
}
deepspeed.init_distributed("nccl")
with deepspeed.zero.Init(config_dict_or_path=ds_config):
    model = LlamaForCausalLM(config)
model.gradient_checkpointing_enable()
engine, *_ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config=ds_config
)
engine.train()
for step in range(4):
    ids = torch.randint(32000, (4, 2048), device=engine.device)
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
    print(step, loss.item())
