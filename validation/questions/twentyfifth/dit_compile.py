"""Class-conditional diffusion transformer on VAE latents (DiT-XL/2), with EMA and torch.compile."""
import argparse
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.attn = Attention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))

    def forward(self, x, c):
        s1, c1, g1, s2, c2, g2 = self.ada(c).chunk(6, dim=1)
        x = x + g1.unsqueeze(1) * self.attn(modulate(self.norm1(x), s1, c1))
        return x + g2.unsqueeze(1) * self.mlp(modulate(self.norm2(x), s2, c2))


class DiT(nn.Module):
    def __init__(self, size=32, patch=2, channels=4, dim=1152, depth=28, heads=16, classes=1000):
        super().__init__()
        self.patch, self.channels, self.dim = patch, channels, dim
        self.embed = nn.Conv2d(channels, dim, patch, stride=patch)
        self.pos = nn.Parameter(torch.randn(1, (size // patch) ** 2, dim) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.label = nn.Embedding(classes + 1, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.out = nn.Linear(dim, patch * patch * channels)

    def forward(self, x, t, y):
        b, _, h, w = x.shape
        freqs = torch.exp(-math.log(10000) * torch.arange(128, device=x.device) / 128)
        angles = t[:, None].float() * freqs[None]
        c = self.time(torch.cat([angles.cos(), angles.sin()], dim=1)) + self.label(y)
        x = self.embed(x).flatten(2).transpose(1, 2) + self.pos
        for block in self.blocks:
            x = block(x, c)
        x = self.out(self.norm(x))
        p = self.patch
        x = x.view(b, h // p, w // p, p, p, self.channels).permute(0, 5, 1, 3, 2, 4)
        return x.reshape(b, self.channels, h, w)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=400_000)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    model = DiT(size=args.size).cuda()
    ema = copy.deepcopy(model).requires_grad_(False).eval()
    print(sum(p.numel() for p in model.parameters()) / 1e6, "M parameters")
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0, fused=True)
    run = model if args.no_compile else torch.compile(model)
    abar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device="cuda"), 0)
    for step in range(args.steps):
        x = torch.randn(args.batch, 4, args.size, args.size, device="cuda")
        y = torch.randint(0, 1000, (args.batch,), device="cuda")
        t = torch.randint(0, 1000, (args.batch,), device="cuda")
        noise = torch.randn_like(x)
        a = abar[t].view(-1, 1, 1, 1)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            pred = run(a.sqrt() * x + (1 - a).sqrt() * noise, t, y)
        loss = F.mse_loss(pred.float(), noise)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 1e-4)
        if step % 100 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
