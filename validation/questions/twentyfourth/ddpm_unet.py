"""Pixel diffusion at 128 px, a U-Net with attention, and an average of its weights."""
import argparse
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def timestep_embedding(t, dim):
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
    args = t[:, None].float() * freqs[None]
    return torch.cat([args.cos(), args.sin()], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, emb):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.emb = nn.Linear(emb, cout)
        self.norm2, self.conv2 = nn.GroupNorm(32, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, e):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.emb(F.silu(e))[:, :, None, None]
        h = self.conv2(F.dropout(F.silu(self.norm2(h)), 0.1, self.training))
        return h + self.skip(x)


class SelfAttention(nn.Module):
    """Written as the first DDPM code has it."""

    def __init__(self, c, heads=4):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(32, c)
        self.qkv = nn.Conv1d(c, 3 * c, 1)
        self.out = nn.Conv1d(c, c, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x).flatten(2)).reshape(b * self.heads, 3 * c // self.heads, h * w).chunk(3, dim=1)
        weights = torch.einsum("bct,bcs->bts", q, k) / math.sqrt(c // self.heads)
        weights = weights.softmax(dim=-1)
        y = torch.einsum("bts,bcs->bct", weights, v).reshape(b, c, h * w)
        return x + self.out(y).reshape(b, c, h, w)


class UNet(nn.Module):
    def __init__(self, base=128, mults=(1, 1, 2, 3, 4), attention_at=(32, 16, 8), size=128, blocks=2):
        super().__init__()
        emb = base * 4
        self.base = base
        self.time = nn.Sequential(nn.Linear(base, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.stem = nn.Conv2d(3, base, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        channels, c, res = [base], base, size
        for i, m in enumerate(mults):
            for _ in range(blocks):
                self.down.append(nn.ModuleList([ResBlock(c, base * m, emb), SelfAttention(base * m) if res in attention_at else nn.Identity()]))
                c = base * m
                channels.append(c)
            if i < len(mults) - 1:
                self.down.append(nn.Conv2d(c, c, 3, stride=2, padding=1))
                channels.append(c)
                res //= 2
        self.mid1, self.mid_attn, self.mid2 = ResBlock(c, c, emb), SelfAttention(c), ResBlock(c, c, emb)
        for i, m in reversed(list(enumerate(mults))):
            for _ in range(blocks + 1):
                self.up.append(nn.ModuleList([ResBlock(c + channels.pop(), base * m, emb), SelfAttention(base * m) if res in attention_at else nn.Identity()]))
                c = base * m
            if i > 0:
                self.up.append(nn.ConvTranspose2d(c, c, 4, stride=2, padding=1))
                res *= 2
        self.norm, self.final = nn.GroupNorm(32, c), nn.Conv2d(c, 3, 3, padding=1)

    def forward(self, x, t):
        e = self.time(timestep_embedding(t, self.base))
        h = self.stem(x)
        kept = [h]
        for layer in self.down:
            h = layer(h) if isinstance(layer, nn.Conv2d) else layer[1](layer[0](h, e))
            kept.append(h)
        h = self.mid2(self.mid_attn(self.mid1(h, e)), e)
        for layer in self.up:
            if isinstance(layer, nn.ConvTranspose2d):
                h = layer(h)
            else:
                h = layer[1](layer[0](torch.cat([h, kept.pop()], dim=1), e))
        return self.final(F.silu(self.norm(h)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--amp", action="store_true")
    args = parser.parse_args()
    model = UNet().cuda()
    ema = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cuda", enabled=args.amp)
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device="cuda"), 0)
    for step in range(4):
        x = torch.rand(args.batch, 3, 128, 128, device="cuda") * 2 - 1
        t = torch.randint(0, 1000, (args.batch,), device="cuda")
        noise = torch.randn_like(x)
        a = alphas[t][:, None, None, None]
        with torch.autocast("cuda", dtype=torch.float16, enabled=args.amp):
            loss = F.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for p, q in zip(ema.parameters(), model.parameters()):
                p.lerp_(q, 0.001)
        print(step, loss.item())


if __name__ == "__main__":
    main()
