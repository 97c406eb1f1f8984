"""FSDP2 with parameters, gradients and Adam's states on the host: a 0.8B Llama, bf16."""

import tempfile

import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
torch.cuda.set_device(0)
store = tempfile.mktemp()
dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{store}", rank=0, world_size=1)
config = LlamaConfig(
    vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=14,
    num_attention_heads=32, num_key_value_heads=4, use_cache=False,
)  # fmt: skip
model = LlamaForCausalLM(config)
policy = {
    "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    "offload_policy": CPUOffloadPolicy(),
}
for layer in model.model.layers:
    fully_shard(layer, **policy)
fully_shard(model, **policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
for step in range(3):
    ids = torch.randint(32000, (4, 2048), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
dist.destroy_process_group()
