"""ViT-base of timm with AMP in bf16, channels_last, an EMA of the weights and label smoothing."""

import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3

torch.manual_seed(0)
model = timm.create_model("vit_base_patch16_224", pretrained=False, drop_path_rate=0.1)
model = model.cuda().to(memory_format=torch.channels_last)
ema = ModelEmaV3(model, decay=0.999)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
criterion = LabelSmoothingCrossEntropy(0.1)
for step in range(6):
    images = torch.randn(128, 3, 224, 224).cuda().contiguous(memory_format=torch.channels_last)
    labels = torch.randint(1000, (128,)).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        loss = criterion(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    ema.update(model, step=step)
    print(step, loss.item())
