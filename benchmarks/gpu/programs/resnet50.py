"""ResNet-50 of torchvision in fp32: SGD with momentum, as in PyTorch's ImageNet example."""

import torch
from torch import nn
from torchvision.models import resnet50

torch.manual_seed(0)
model = resnet50().cuda()
criterion = nn.CrossEntropyLoss().cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
for step in range(6):
    images = torch.randn(128, 3, 224, 224).cuda(non_blocking=True)
    target = torch.randint(1000, (128,)).cuda(non_blocking=True)
    output = model(images)
    loss = criterion(output, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
