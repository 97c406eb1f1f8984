"""LoRA on the attention of a small Qwen3-MoE, 64 experts, 8 for a token, bf16 by autocast."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

torch.manual_seed(0)
config = Qwen3MoeConfig(
    vocab_size=151936, hidden_size=1024, intermediate_size=3072, moe_intermediate_size=512,
    num_hidden_layers=12, num_attention_heads=16, num_key_value_heads=4, head_dim=128,
    num_experts=64, num_experts_per_tok=8, use_cache=False,
)  # fmt: skip
with torch.device("cuda"):
    model = Qwen3MoeForCausalLM(config).to(torch.bfloat16)
lora = LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
model = get_peft_model(model, lora)
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-4)
for step in range(4):
    ids = torch.randint(151936, (4, 1024), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
