"""3D U-Net for CT segmentation. Random volumes until the real data are here."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--batch-size", type=int, default=2)
p.add_argument("--patch", type=int, default=128)
p.add_argument("--width", type=int, default=32)
p.add_argument("--steps", type=int, default=20)
args = p.parse_args()


def block(i, o):
    return nn.Sequential(
        nn.Conv3d(i, o, 3, padding=1), nn.InstanceNorm3d(o, affine=True), nn.LeakyReLU(0.01),
        nn.Conv3d(o, o, 3, padding=1), nn.InstanceNorm3d(o, affine=True), nn.LeakyReLU(0.01))


class UNet3D(nn.Module):
    def __init__(self, cin=1, classes=4, w=32, depth=4):
        super().__init__()
        c = [w * 2**k for k in range(depth + 1)]
        self.down = nn.ModuleList(block(cin if k == 0 else c[k - 1], c[k]) for k in range(depth + 1))
        self.up = nn.ModuleList(nn.ConvTranspose3d(c[k + 1], c[k], 2, 2) for k in reversed(range(depth)))
        self.dec = nn.ModuleList(block(2 * c[k], c[k]) for k in reversed(range(depth)))
        self.head = nn.Conv3d(w, classes, 1)

    def forward(self, x):
        skips = []
        for k, d in enumerate(self.down):
            x = d(x if k == 0 else F.max_pool3d(x, 2))
            skips.append(x)
        skips.pop()
        for up, dec in zip(self.up, self.dec):
            x = dec(torch.cat([up(x), skips.pop()], 1))
        return self.head(x)


model = UNet3D(w=args.width).cuda()
opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
scaler = torch.amp.GradScaler("cuda")
for step in range(args.steps):
    x = torch.randn(args.batch_size, 1, *[args.patch] * 3, device="cuda")
    y = torch.randint(0, 4, (args.batch_size, *[args.patch] * 3), device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    opt.zero_grad(set_to_none=True)
    print(step, loss.item())
