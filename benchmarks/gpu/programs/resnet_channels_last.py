"""ResNet-101 of torchvision in channels_last with fp16 and a GradScaler, cudnn.benchmark on."""

import torch
from torch.nn import functional as F
from torchvision.models import resnet101

torch.manual_seed(0)
torch.backends.cudnn.benchmark = True
model = resnet101().cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
scaler = torch.amp.GradScaler("cuda")
model.train()
for step in range(6):
    images = torch.randn(96, 3, 224, 224).cuda(non_blocking=True)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(1000, (96,)).cuda(non_blocking=True)
    with torch.autocast("cuda", torch.float16):
        loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(step, loss.item())
