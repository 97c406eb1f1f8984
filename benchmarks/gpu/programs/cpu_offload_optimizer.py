"""A 0.5B Qwen2 whose AdamW states live on the host: torchao's CPUOffloadOptimizer, bf16."""

import torch
from torchao.optim import CPUOffloadOptimizer
from transformers import Qwen2Config, Qwen2ForCausalLM

torch.manual_seed(0)
config = Qwen2Config(
    vocab_size=32000, hidden_size=1024, intermediate_size=4096, num_hidden_layers=24,
    num_attention_heads=16, num_key_value_heads=4, use_cache=False,
)  # fmt: skip
model = Qwen2ForCausalLM(config).to("cuda", torch.bfloat16)
optimizer = CPUOffloadOptimizer(
    model.parameters(), torch.optim.AdamW, offload_gradients=True, fused=True, lr=1e-4
)
for step in range(4):
    ids = torch.randint(32000, (4, 1024), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
