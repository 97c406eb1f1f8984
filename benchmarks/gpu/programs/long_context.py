"""A 1B Llama on rows of 16,384 tokens: gradient checkpointing, accumulation over two rows, bf16."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
    num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=131072,
    tie_word_embeddings=True, use_cache=False,
)  # fmt: skip
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = LlamaForCausalLM(config)
model.gradient_checkpointing_enable({"use_reentrant": False})
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for step in range(4):
    for _ in range(2):
        ids = torch.randint(128256, (1, 16384), device="cuda")
        loss = model(input_ids=ids, labels=ids).loss / 2
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
