"""Everything that the backward pass needs waits on the host: save_on_cpu with pinned memory."""

import torch
from torch.autograd.graph import save_on_cpu
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(use_cache=False)).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(4):
    ids = torch.randint(50257, (4, 1024), device="cuda")
    with torch.autocast("cuda", torch.bfloat16), save_on_cpu(pin_memory=True):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
