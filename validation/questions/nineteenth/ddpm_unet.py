"""A small DDPM on 256-pixel leaves: U-Net with attention, fp16 autocast, EMA copy on the card."""
import argparse
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
n, w = parser.parse_args().batch_size, 128


class Res(nn.Module):
    def __init__(self, i, o, attend=False):
        super().__init__()
        self.a = nn.Sequential(nn.GroupNorm(32, i), nn.SiLU(), nn.Conv2d(i, o, 3, padding=1))
        self.b = nn.Sequential(nn.GroupNorm(32, o), nn.SiLU(), nn.Conv2d(o, o, 3, padding=1))
        self.time, self.skip = nn.Linear(512, o), nn.Conv2d(i, o, 1)
        self.att = nn.MultiheadAttention(o, 8, batch_first=True) if attend else None

    def forward(self, x, t):
        x = self.skip(x) + self.b(self.a(x) + self.time(t)[:, :, None, None])
        y = x.flatten(2).transpose(1, 2)
        return x + self.att(y, y, y)[0].transpose(1, 2).reshape(x.shape) if self.att else x


class UNet(nn.Module):
    def __init__(self, sizes, back):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 512), nn.SiLU(), nn.Linear(512, 512))
        self.first, self.last = nn.Conv2d(3, sizes[0], 3, padding=1), nn.Conv2d(sizes[0], 3, 3, padding=1)
        self.down = nn.ModuleList(Res(a, b, n >= 3) for n, (a, b) in enumerate(zip([sizes[0], *sizes], sizes)))
        self.up = nn.ModuleList(Res(a + b, b, n <= 2) for n, (a, b) in enumerate(zip([back[0], *back], back)))

    def forward(self, x, t):
        t, x, kept = self.time(t[:, None]), self.first(x), []
        for block in self.down:
            kept.append(block(x, t))
            x = F.avg_pool2d(kept[-1], 2)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), kept.pop()], 1), t)
        return self.last(x)


model = UNet([w, w, 2 * w, 2 * w, 4 * w, 4 * w], [4 * w, 4 * w, 2 * w, 2 * w, w, w]).cuda()
ema = copy.deepcopy(model).requires_grad_(False)
opt, scaler = torch.optim.AdamW(model.parameters(), lr=1e-4), torch.amp.GradScaler("cuda")
for step in range(3):
    x, t = torch.randn(n, 3, 256, 256, device="cuda"), torch.rand(n, device="cuda")
    noise, a = torch.randn_like(x), torch.cos(t * 1.57)[:, None, None, None]
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.mse_loss(model(a * x + (1 - a**2).sqrt() * noise, t), noise)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    for e, p in zip(ema.parameters(), model.parameters()):
        e.lerp_(p.detach(), 1e-4)
    print(step, loss.item())
