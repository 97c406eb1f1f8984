"""A small Granite 4 hybrid of transformers: Mamba-2 layers and attention, checkpointed, bf16."""

import torch
from transformers import GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM

torch.manual_seed(0)
config = GraniteMoeHybridConfig(
    vocab_size=100352, hidden_size=768, intermediate_size=2048, shared_intermediate_size=2048,
    num_hidden_layers=16, num_attention_heads=12, num_key_value_heads=4, num_local_experts=0,
    num_experts_per_tok=0, layer_types=(["mamba"] * 7 + ["attention"]) * 2,
    mamba_n_heads=48, mamba_d_head=32, mamba_d_state=128, mamba_n_groups=1, use_cache=False,
)  # fmt: skip
model = GraniteMoeHybridForCausalLM(config).to("cuda", torch.bfloat16).train()
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(4):
    ids = torch.randint(100352, (2, 1024), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
