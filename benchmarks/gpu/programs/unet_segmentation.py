"""The U-Net of many a segmentation tutorial, channels_last, bf16 autocast, dice and BCE losses."""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class DoubleConv(nn.Sequential):
    def __init__(self, into, out):
        super().__init__(
            nn.Conv2d(into, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(True),
            nn.Conv2d(out, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(True),
        )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, widths=(64, 128, 256, 512, 1024)):
        super().__init__()
        self.first = DoubleConv(3, widths[0])
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(DoubleConv(a, b) for a, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairs[::-1])
        self.joined = nn.ModuleList(DoubleConv(2 * a, a) for a, _ in pairs[::-1])
        self.head = nn.Conv2d(widths[0], 1, 1)

    def forward(self, x):
        kept = [self.first(x)]
        for block in self.down:
            kept.append(block(F.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for up, block in zip(self.up, self.joined, strict=True):
            x = block(torch.cat([kept.pop(), up(x)], dim=1))
        return self.head(x)


model = UNet().cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-5, momentum=0.9, foreach=True)
for step in range(5):
    images = torch.randn(12, 3, 384, 384, device="cuda").to(memory_format=torch.channels_last)
    masks = (torch.rand(12, 1, 384, 384, device="cuda") > 0.5).float()
    with torch.autocast("cuda", torch.bfloat16):
        logits = model(images)
        loss = F.binary_cross_entropy_with_logits(logits, masks)
        p = logits.float().sigmoid()
        loss = loss + 1 - (2 * (p * masks).sum() + 1) / (p.sum() + masks.sum() + 1)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(step, loss.item())
