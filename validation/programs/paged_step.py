"""bitsandbytes' optimizers, 8-bit or paged, on a Llama in bf16.

Told: name of the optimizer, batch, length, width, width of the MLP, layers, heads, key heads,
width of a head, vocabulary.
"""

import sys

import bitsandbytes
import torch
from transformers import LlamaConfig, LlamaForCausalLM

batch, length, width, mlp, layers, heads, kv_heads, head_dim, vocabulary = map(int, sys.argv[2:11])
config = LlamaConfig(
    hidden_size=width,
    intermediate_size=mlp,
    num_hidden_layers=layers,
    num_attention_heads=heads,
    num_key_value_heads=kv_heads,
    head_dim=head_dim,
    vocab_size=vocabulary,
    attn_implementation="sdpa",
)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
optimizer = getattr(bitsandbytes.optim, sys.argv[1])(model.parameters(), lr=1e-4)
for _ in range(3):
    ids = torch.randint(0, vocabulary, (batch, length), device="cuda")
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
