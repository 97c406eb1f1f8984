"""DeltaNet of flash-linear-attention (Triton) as a language model in bf16."""

import torch
from fla.models import DeltaNetConfig, DeltaNetForCausalLM

torch.manual_seed(0)
config = DeltaNetConfig(hidden_size=1024, num_hidden_layers=12, num_heads=8, vocab_size=32000)
model = DeltaNetForCausalLM(config).to("cuda", torch.bfloat16).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(4):
    ids = torch.randint(32000, (4, 2048), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
