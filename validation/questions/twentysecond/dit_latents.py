"""A diffusion transformer (DiT-L/2) on 32 x 32 x 4 latents of ImageNet, with an EMA copy. Plain PyTorch."""

import argparse
import copy
import math

import torch
from torch import nn


def timestep_embedding(t, dim):
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
    args = t[:, None].float() * freqs[None]
    return torch.cat([args.cos(), args.sin()], dim=-1)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        self.heads = heads

    def forward(self, x, c):
        s1, b1, g1, s2, b2, g2 = self.ada(c).unsqueeze(1).chunk(6, dim=-1)
        n, t, w = x.shape
        h = self.norm1(x) * (1 + s1) + b1
        q, k, v = self.qkv(h).view(n, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        h = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, w)
        x = x + g1 * self.proj(h)
        return x + g2 * self.mlp(self.norm2(x) * (1 + s2) + b2)


class DiT(nn.Module):
    def __init__(self, width=1024, depth=24, heads=16, patch=2, size=32, channels=4, classes=1000):
        super().__init__()
        self.patchify = nn.Conv2d(channels, width, patch, patch)
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(classes + 1, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.head = nn.Linear(width, patch * patch * channels)
        self.patch, self.size, self.channels = patch, size, channels

    def forward(self, x, t, y):
        x = self.patchify(x).flatten(2).transpose(1, 2) + self.positions
        c = self.time(timestep_embedding(t, 256)) + self.label(y)
        for block in self.blocks:
            x = block(x, c)
        x = self.head(self.norm(x))
        side = self.size // self.patch
        x = x.view(-1, side, side, self.patch, self.patch, self.channels)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(-1, self.channels, self.size, self.size)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--depth", type=int, default=24)
    p.add_argument("--width", type=int, default=1024)
    p.add_argument("--steps", type=int, default=3)
    args = p.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = True
    model = DiT(width=args.width, depth=args.depth).to(device)
    ema = copy.deepcopy(model).requires_grad_(False).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device=device), 0)

    for step in range(args.steps):
        x = torch.randn(args.batch, 4, 32, 32, device=device)
        y = torch.randint(0, 1000, (args.batch,), device=device)
        t = torch.randint(0, 1000, (args.batch,), device=device)
        noise = torch.randn_like(x)
        a = alphas[t].view(-1, 1, 1, 1)
        noisy = a.sqrt() * x + (1 - a).sqrt() * noise
        with torch.autocast(device.type, torch.bfloat16):
            loss = nn.functional.mse_loss(model(noisy, t, y).float(), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for e, m in zip(ema.parameters(), model.parameters()):
                e.lerp_(m, 1e-4)
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
