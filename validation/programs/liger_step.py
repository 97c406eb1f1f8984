"""Two steps of a causal language model with all of Liger's kernels, in bf16 with fused AdamW."""

import sys

import liger_kernel.transformers as liger
import torch
import transformers

KIND, BATCH, LENGTH, WIDTH, MLP, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = (
    sys.argv[1], *map(int, sys.argv[2:11]),
)  # fmt: skip
RANK = int(sys.argv[11]) if len(sys.argv) > 11 else 0  # noqa: PLR2004 - of adapters, if any
CONFIGS = {
    "llama": transformers.LlamaConfig,
    "qwen3": transformers.Qwen3Config,
    "gemma": transformers.GemmaConfig,
}

getattr(liger, f"apply_liger_kernel_to_{KIND}")()
config = CONFIGS[KIND](
    hidden_size=WIDTH,
    intermediate_size=MLP,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    vocab_size=VOCAB,
    max_position_embeddings=LENGTH,
    use_cache=False,
)
model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
if RANK:
    import peft

    model = peft.get_peft_model(model, peft.LoraConfig(r=RANK, target_modules="all-linear"))
model = model.to("cuda").train()
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
for _ in range(2):
    tokens = torch.randint(0, VOCAB, (BATCH, LENGTH), device="cuda")
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
