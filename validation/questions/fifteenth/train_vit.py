"""ImageNet fine-tuning of ViT-L/16 with mixed precision, one GPU."""

import argparse

import torch
from transformers import ViTConfig, ViTForImageClassification

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()

config = ViTConfig(
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
    image_size=224,
    patch_size=16,
    num_labels=1000,
)
model = ViTForImageClassification(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler("cuda")

for step in range(args.steps):
    pixels = torch.randn(args.batch_size, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 1000, (args.batch_size,), device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(pixel_values=pixels, labels=labels).loss
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    print(step, loss.item())
