"""Flow matching on latents of 49 frames of 480 x 720, text by cross attention, EMA. 1.3B. torchrun not needed: one card."""
import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def modulate(x, shift, scale):
    return x * (1 + scale) + shift


class Attention(nn.Module):
    def __init__(self, dim, heads, context=None):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(context or dim, 2 * dim)
        self.o = nn.Linear(dim, dim)
        self.qn, self.kn = nn.RMSNorm(dim // heads), nn.RMSNorm(dim // heads)

    def forward(self, x, context=None):
        b, n, d = x.shape
        context = x if context is None else context
        q = self.q(x).view(b, n, self.heads, -1).transpose(1, 2)
        k, v = self.kv(context).view(b, context.shape[1], 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(self.qn(q), self.kn(k), v)
        return self.o(out.transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, dim, heads, text):
        super().__init__()
        self.n1 = nn.LayerNorm(dim, elementwise_affine=False)
        self.n2 = nn.LayerNorm(dim)
        self.n3 = nn.LayerNorm(dim, elementwise_affine=False)
        self.self_attention = Attention(dim, heads)
        self.cross_attention = Attention(dim, heads, text)
        self.mlp = nn.Sequential(nn.Linear(dim, 6 * dim), nn.GELU("tanh"), nn.Linear(6 * dim, dim))
        self.table = nn.Parameter(torch.randn(6, dim) / dim**0.5)

    def forward(self, x, t, text):
        s1, c1, g1, s2, c2, g2 = (self.table + t).chunk(6, dim=1)
        x = x + g1 * self.self_attention(modulate(self.n1(x), s1, c1))
        x = x + self.cross_attention(self.n2(x), text)
        return x + g2 * self.mlp(modulate(self.n3(x), s2, c2))


class VideoDiT(nn.Module):
    def __init__(self, dim=1536, depth=30, heads=12, text=4096, channels=16):
        super().__init__()
        self.patch = nn.Conv3d(channels, dim, (1, 2, 2), (1, 2, 2))
        self.text = nn.Sequential(nn.Linear(text, dim), nn.GELU("tanh"), nn.Linear(dim, dim))
        self.time = nn.Sequential(nn.Linear(256, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.time6 = nn.Linear(dim, 6 * dim)
        self.blocks = nn.ModuleList(Block(dim, heads, dim) for _ in range(depth))
        self.out = nn.Linear(dim, channels * 4)
        self.dim, self.channels, self.recompute = dim, channels, True

    def forward(self, x, t, text):
        b, c, f, h, w = x.shape
        x = self.patch(x).flatten(2).transpose(1, 2)
        freqs = torch.exp(-torch.arange(128, device=x.device) * (9.21 / 128))
        angles = t[:, None] * 1000 * freqs
        emb = self.time(torch.cat([angles.cos(), angles.sin()], -1))
        t6 = self.time6(F.silu(emb)).view(b, 6, self.dim)
        text = self.text(text)
        for block in self.blocks:
            if self.recompute and self.training:
                x = checkpoint(block, x, t6, text, use_reentrant=False)
            else:
                x = block(x, t6, text)
        x = self.out(x).view(b, f, h // 2, w // 2, c, 2, 2)
        return x.permute(0, 4, 1, 2, 5, 3, 6).reshape(b, c, f, h, w)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--frames", type=int, default=13, help="latent frames: 49 of video make 13")
    p.add_argument("--accumulate", type=int, default=4)
    p.add_argument("--no-checkpoint", action="store_true")
    args = p.parse_args()

    device = torch.device("cuda")
    model = VideoDiT().to(device)
    model.recompute = not args.no_checkpoint
    ema = copy.deepcopy(model).requires_grad_(False)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    for step in range(500):
        for _ in range(args.accumulate):
            x1 = torch.randn(args.batch, 16, args.frames, 60, 90, device=device)
            text = torch.randn(args.batch, 226, 4096, device=device, dtype=torch.bfloat16)
            x0, t = torch.randn_like(x1), torch.rand(args.batch, device=device)
            s = t.view(-1, 1, 1, 1, 1)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                v = model((1 - s) * x0 + s * x1, t, text)
            loss = F.mse_loss(v.float(), x1 - x0) / args.accumulate
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        with torch.no_grad():
            for a, b in zip(ema.parameters(), model.parameters()):
                a.lerp_(b, 1e-4)
        print(step, loss.item())
