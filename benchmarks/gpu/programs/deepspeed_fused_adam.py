"""DeepSpeed ZeRO-1 in fp16 with its own FusedAdam, compiled when it is first asked for: GPT-2."""

import os

import deepspeed
import torch
from transformers import GPT2Config, GPT2LMHeadModel

os.environ.update(
    RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29604"
)
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_embd=1024, n_layer=24, n_head=16, use_cache=False))
ds_config = {
    "train_micro_batch_size_per_gpu": 4,
    "fp16": {"enabled": True, "initial_scale_power": 12},
    "zero_optimization": {"stage": 1},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
}
engine, *_ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config=ds_config
)
for step in range(4):
    ids = torch.randint(50257, (4, 1024), device=engine.device)
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
    print(step, loss.item())
