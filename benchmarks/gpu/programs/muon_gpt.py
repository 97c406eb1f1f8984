"""PyTorch's Muon for matrices, AdamW for the rest: a Llama of 0.4B parameters in bf16."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=24,
    num_attention_heads=16, num_key_value_heads=16, use_cache=False,
)  # fmt: skip
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "layers" in n]
others = [p for n, p in model.named_parameters() if p.ndim != 2 or "layers" not in n]
optimizers = [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=3e-4)]
for step in range(4):
    ids = torch.randint(32000, (8, 1024), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    print(step, loss.item())
