"""GaLore's AdamW on the matrices of a Llama in bf16, as its README sets it up.

Told: batch, length, width, width of the MLP, layers, heads, key heads,
width of a head, vocabulary, rank.
"""

import sys

import torch
from galore_torch import GaLoreAdamW
from transformers import LlamaConfig, LlamaForCausalLM

batch, length, width, mlp, layers, heads, kv_heads, head_dim, vocabulary, rank = map(
    int, sys.argv[1:11]
)
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
matrices = [p for name, p in model.named_parameters() if "_proj" in name]
known = {id(p) for p in matrices}
others = [p for p in model.parameters() if id(p) not in known]
galore = {"rank": rank, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}
optimizer = GaLoreAdamW([{"params": others}, {"params": matrices, **galore}], lr=1e-2)
for _ in range(3):
    ids = torch.randint(0, vocabulary, (batch, length), device="cuda")
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
