"""Gemma 3 in the shape of its 1B, ten layers, eager attention as its card says, bf16."""

import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

torch.manual_seed(0)
config = Gemma3TextConfig(
    vocab_size=262144, hidden_size=1152, intermediate_size=6912, num_hidden_layers=10,
    num_attention_heads=4, num_key_value_heads=1, head_dim=256, sliding_window=512,
    attn_implementation="eager", use_cache=False,
)  # fmt: skip
model = Gemma3ForCausalLM(config).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
model.train()
for step in range(4):
    ids = torch.randint(262144, (2, 2048), device="cuda")
    mask = torch.ones_like(ids)
    loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
