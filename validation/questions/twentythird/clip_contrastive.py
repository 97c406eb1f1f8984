"""CLIP ViT-L/14 on product pictures and captions; bigger batches are more negatives."""
import argparse

import torch
from transformers import CLIPConfig, CLIPModel

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=128)
parser.add_argument("--steps", type=int, default=50)
args = parser.parse_args()

config = CLIPConfig(
    text_config={"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12},
    vision_config={
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "patch_size": 14,
        "image_size": 224,
    },
    projection_dim=768,
)
model = CLIPModel(config).cuda()
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-6, weight_decay=0.2)

for step in range(args.steps):
    pixels = torch.randn(args.batch, 3, 224, 224, device="cuda")
    ids = torch.randint(0, 49000, (args.batch, 77), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(input_ids=ids, pixel_values=pixels, return_loss=True).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0:
        print(step, loss.item())
