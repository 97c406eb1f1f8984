"""OPT-350m's shape with eager attention and padded rows, bf16 autocast."""

import torch
from transformers import OPTConfig, OPTForCausalLM

torch.manual_seed(0)
config = OPTConfig(
    hidden_size=1024, ffn_dim=4096, num_hidden_layers=24, num_attention_heads=16,
    word_embed_proj_dim=1024, attn_implementation="eager", use_cache=False,
)  # fmt: skip
model = OPTForCausalLM(config).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for step in range(4):
    ids = torch.randint(3, 50272, (4, 1024), device="cuda")
    lengths = torch.tensor([1024, 700, 900, 512], device="cuda")
    mask = (torch.arange(1024, device="cuda") < lengths[:, None]).long()
    labels = ids.masked_fill(mask == 0, -100)
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
