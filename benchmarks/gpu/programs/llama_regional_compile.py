"""A 1.1B Llama of Hugging Face, each decoder layer compiled by itself, bf16 autocast."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
config = LlamaConfig(
    vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22,
    num_attention_heads=32, num_key_value_heads=4, use_cache=False,
)  # fmt: skip
with torch.device("cuda"):
    model = LlamaForCausalLM(config)
for layer in model.model.layers:
    layer.compile()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for step in range(4):
    ids = torch.randint(32000, (4, 1024), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
