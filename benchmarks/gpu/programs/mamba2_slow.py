"""A Mamba-2 of transformers without its kernels: the path in plain PyTorch, 12 layers, bf16."""

import torch
from transformers import Mamba2Config, Mamba2ForCausalLM

torch.manual_seed(0)
config = Mamba2Config(
    vocab_size=32000, hidden_size=1024, num_hidden_layers=12, num_heads=32, head_dim=64,
    state_size=64, n_groups=1, chunk_size=128, use_cache=False,
)  # fmt: skip
model = Mamba2ForCausalLM(config).to("cuda", torch.bfloat16).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(4):
    ids = torch.randint(32000, (2, 1024), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
