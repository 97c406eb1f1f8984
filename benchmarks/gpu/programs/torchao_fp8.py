"""torchao's fp8 linear layers in a Llama of Hugging Face, tensorwise scales, bf16."""

import torch
from torchao.float8 import convert_to_float8_training
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=12,
    num_attention_heads=32, num_key_value_heads=8, use_cache=False,
)  # fmt: skip
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
convert_to_float8_training(model, module_filter_fn=lambda module, name: "lm_head" not in name)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for step in range(4):
    ids = torch.randint(32000, (4, 2048), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
