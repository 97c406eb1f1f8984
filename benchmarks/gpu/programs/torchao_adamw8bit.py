"""torchao's 8-bit AdamW (a compiled update) on a bf16 Llama of Hugging Face."""

import torch
from torchao.optim import AdamW8bit
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=32000, hidden_size=1024, intermediate_size=4096, num_hidden_layers=8,
    num_attention_heads=16, num_key_value_heads=8, use_cache=False,
)  # fmt: skip
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
optimizer = AdamW8bit(model.parameters(), lr=1e-4)
for step in range(4):
    ids = torch.randint(32000, (4, 1024), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
