"""Images of 512 pixels: a DiT-XL/2 on latents, its moving average beside it, a frozen encoder before it."""
import argparse
import copy

import torch
from torch import nn
from torch.nn import functional as F


class Encoder(nn.Module):
    """Pictures to latents, 8 times smaller, as Stable Diffusion's."""

    def __init__(self, widths=(128, 256, 512, 512)):
        super().__init__()
        layers, before = [nn.Conv2d(3, widths[0], 3, padding=1)], widths[0]
        for i, width in enumerate(widths):
            for _ in range(2):
                layers += [nn.GroupNorm(32, before), nn.SiLU(), nn.Conv2d(before, width, 3, padding=1)]
                before = width
            if i < 3:
                layers.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
        layers += [nn.GroupNorm(32, before), nn.SiLU(), nn.Conv2d(before, 8, 3, padding=1)]
        self.body = nn.Sequential(*layers)

    def forward(self, x):
        mean, logvar = self.body(x).chunk(2, 1)
        return (mean + torch.randn_like(mean) * torch.exp(0.5 * logvar)) * 0.18215


class DiTBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.n1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.n2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x, c):
        s1, b1, g1, s2, b2, g2 = self.ada(c).unsqueeze(1).chunk(6, -1)
        h = self.n1(x) * (1 + s1) + b1
        q, k, v = self.qkv(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + g1 * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + g2 * self.mlp(self.n2(x) * (1 + s2) + b2)


class DiT(nn.Module):
    def __init__(self, width=1152, depth=28, heads=16, patch=2, side=64, classes=1000):
        super().__init__()
        self.patch, self.side = patch, side
        self.embed = nn.Conv2d(4, width, patch, stride=patch)
        self.pos = nn.Parameter(torch.randn(1, (side // patch) ** 2, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(classes + 1, width)
        self.blocks = nn.ModuleList(DiTBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.final = nn.Linear(width, patch * patch * 4)

    def forward(self, z, t, y):
        freq = torch.exp(-torch.arange(128, device=z.device) / 128 * 9.21)
        angles = t[:, None] * 1000 * freq
        c = self.time(torch.cat((angles.cos(), angles.sin()), -1)) + self.label(y)
        x = self.embed(z).flatten(2).transpose(1, 2) + self.pos
        for block in self.blocks:
            x = block(x, c)
        x = self.final(self.norm(x))
        n = self.side // self.patch
        return x.view(-1, n, n, self.patch, self.patch, 4).permute(0, 5, 1, 3, 2, 4).reshape(-1, 4, self.side, self.side)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    encoder = Encoder().cuda().eval().requires_grad_(False)
    model = DiT().cuda()
    ema = copy.deepcopy(model).eval().requires_grad_(False)
    net = torch.compile(model) if args.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
    for step in range(1000):
        images = torch.rand(args.batch, 3, 512, 512, device="cuda") * 2 - 1
        y = torch.randint(0, 1000, (args.batch,), device="cuda")
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            z = encoder(images)
        t = torch.rand(args.batch, device="cuda")
        noise = torch.randn_like(z)
        noisy = (1 - t.view(-1, 1, 1, 1)) * z + t.view(-1, 1, 1, 1) * noise
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.mse_loss(net(noisy, t, y).float(), (noise - z).float())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for a, b in zip(ema.parameters(), model.parameters()):
                a.lerp_(b, 0.0001)
        if step % 100 == 0:
            print(step, loss.item())


main()
