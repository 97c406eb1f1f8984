import argparse, copy
import torch
from torch import nn
p = argparse.ArgumentParser()
p.add_argument("--batch", type=int, default=64)
a = p.parse_args()
class DiT(nn.Module):
    def __init__(self, width=768, depth=12):
        super().__init__()
        self.patch = nn.Conv2d(4, width, 2, 2)
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, 12, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(depth))
        self.out = nn.Linear(width, 16)
    def forward(self, x, t):
        h = self.patch(x).flatten(2).transpose(1, 2) + self.time(t)[:, None]
        for block in self.blocks:
            h = block(h)
        return self.out(h)
model = DiT().cuda()
ema = copy.deepcopy(model).requires_grad_(False)
opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(3):
    x = torch.randn(a.batch, 4, 64, 64, device="cuda")
    t = torch.rand(a.batch, 1, device="cuda")
    loss = model(x, t).square().mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
    with torch.no_grad():
        for e, w in zip(ema.parameters(), model.parameters()):
            e.lerp_(w, 0.001)
