"""DeepSpeed ZeRO-1 on one device: a 1.1B Llama in bf16, PyTorch's Adam, clipped, accumulated."""

import os

import deepspeed
import torch
from transformers import LlamaConfig, LlamaForCausalLM

os.environ.update(
    RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29601"
)
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22,
    num_attention_heads=32, num_key_value_heads=4, use_cache=False,
)  # fmt: skip
with torch.device("cuda"):
    model = LlamaForCausalLM(config)
ds_config = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 1},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}},
    "gradient_clipping": 1.0,
}
engine, *_ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config=ds_config
)
for step in range(6):
    ids = torch.randint(32000, (2, 2048), device=engine.device)
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
    print(step, loss.item())
