"""DeepSpeed ZeRO-2 with optimizer states on the host: a 0.5B Qwen2, checkpointed, bf16."""

import os

import deepspeed
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

os.environ.update(
    RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29602"
)
torch.manual_seed(0)
config = Qwen2Config(
    vocab_size=32000, hidden_size=1024, intermediate_size=4096, num_hidden_layers=24,
    num_attention_heads=16, num_key_value_heads=4, use_cache=False,
)  # fmt: skip
model = Qwen2ForCausalLM(config)
model.gradient_checkpointing_enable()
ds_config = {
    "train_micro_batch_size_per_gpu": 8,
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": 2,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "overlap_comm": True,
        "contiguous_gradients": True,
    },
    "zero_force_ds_cpu_optimizer": False,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}},
    "gradient_clipping": 1.0,
}
engine, *_ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config=ds_config
)
engine.train()
for step in range(3):
    ids = torch.randint(32000, (8, 2048), device=engine.device)
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
    print(step, loss.item())
