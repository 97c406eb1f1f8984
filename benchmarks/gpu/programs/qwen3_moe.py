"""A small Qwen3-MoE: 32 experts, 4 for a token, with the loss that balances them, in bf16."""

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

torch.manual_seed(0)
config = Qwen3MoeConfig(
    vocab_size=32000, hidden_size=1024, moe_intermediate_size=512, num_hidden_layers=12,
    num_attention_heads=16, num_key_value_heads=4, head_dim=64, num_experts=32,
    num_experts_per_tok=4, output_router_logits=True, use_cache=False,
)  # fmt: skip
model = Qwen3MoeForCausalLM(config).to("cuda", torch.bfloat16).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
for step in range(5):
    ids = torch.randint(32000, (4, 2048), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
