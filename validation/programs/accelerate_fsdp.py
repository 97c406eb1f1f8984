"""A plain loop as ``accelerate launch`` runs it, sharded by the FSDP plugin that is named.

Told: version of FSDP (1 or 2), ``full`` or ``lora``, batch, length, width, width of the MLP,
layers, heads, vocabulary.
"""

import sys

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

version, method = int(sys.argv[1]), sys.argv[2]
batch, length, width, mlp, layers, heads, vocabulary = map(int, sys.argv[3:10])
plugin = FullyShardedDataParallelPlugin(
    fsdp_version=version,
    auto_wrap_policy="transformer_based_wrap",
    transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
    **({"use_orig_params": True} if version == 1 else {}),
)
accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin)
config = LlamaConfig(
    hidden_size=width,
    intermediate_size=mlp,
    num_hidden_layers=layers,
    num_attention_heads=heads,
    num_key_value_heads=heads,
    vocab_size=vocabulary,
)
model = LlamaForCausalLM(config)
if method == "lora":
    model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-4)
model, optimizer = accelerator.prepare(model, optimizer)
model.train()
for _ in range(3):
    ids = torch.randint(0, vocabulary, (batch, length), device=accelerator.device)
    with accelerator.autocast():
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
