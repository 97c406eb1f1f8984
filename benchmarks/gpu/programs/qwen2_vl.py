"""A small Qwen2-VL: pictures of varied size among text, in bf16, its vision tower frozen."""

import torch
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

torch.manual_seed(0)
IMAGE, START, END = 151655, 151652, 151653
config = Qwen2VLConfig(
    text_config={
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 16,
        "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 152064,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12],
        },
    },
    vision_config={"depth": 16, "embed_dim": 768, "num_heads": 12, "hidden_size": 1024},
    image_token_id=IMAGE, vision_start_token_id=START, vision_end_token_id=END,
)  # fmt: skip
model = Qwen2VLForConditionalGeneration(config).to("cuda", torch.bfloat16)
model.model.visual.requires_grad_(False)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)

grid = torch.tensor([[1, 32, 32], [1, 24, 40], [1, 16, 16], [1, 40, 24]])
num_patches = grid.prod(1)
rows = torch.zeros(4, 1024, dtype=torch.long)
for row, patches in enumerate((num_patches // 4).tolist()):
    text = torch.randint(1000, 150000, (700,))
    whole = torch.cat(
        [torch.tensor([START]), torch.full((patches,), IMAGE), torch.tensor([END]), text]
    )
    rows[row, : len(whole)] = whole[:1024]
for step in range(4):
    pixels = torch.randn(int(num_patches.sum()), 3 * 2 * 14 * 14)
    inputs = {
        "input_ids": rows, "attention_mask": (rows > 0).long(), "pixel_values": pixels,
        "image_grid_thw": grid, "mm_token_type_ids": (rows == IMAGE).int(),
        "labels": rows.masked_fill((rows == IMAGE) | (rows == 0), -100),
    }  # fmt: skip
    inputs = {name: value.cuda() for name, value in inputs.items()}
    loss = model(**inputs).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
