"""CLIP from nothing, ViT-B/32's shape, a batch of 512 pairs, fp16 autocast, one loss over all."""

import torch
from transformers import CLIPConfig, CLIPModel

torch.manual_seed(0)
model = CLIPModel(CLIPConfig(projection_dim=512)).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.2)
scaler = torch.amp.GradScaler("cuda")
for step in range(5):
    pixels = torch.randn(512, 3, 224, 224).cuda(non_blocking=True)
    ids = torch.randint(1, 49405, (512, 77))
    ids[:, -1] = 49407
    with torch.autocast("cuda", torch.float16):
        loss = model(input_ids=ids.cuda(), pixel_values=pixels, return_loss=True).loss
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(step, loss.item())
