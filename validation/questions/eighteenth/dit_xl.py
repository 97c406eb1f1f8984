"""DiT-XL/2 on 64x64 latents (512 px), as in the paper, with an EMA copy. One GPU, fp32 weights, bf16 autocast."""

import argparse
import math
from collections import OrderedDict
from copy import deepcopy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--latent", type=int, default=64)
parser.add_argument("--ckpt", action="store_true", help="checkpoint every block")
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()

WIDTH, DEPTH, HEADS, PATCH, CLASSES = 1152, 28, 16, 2, 1000


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


def timestep_embedding(t, dim=256):
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
    a = t[:, None].float() * freqs[None]
    return torch.cat([torch.cos(a), torch.sin(a)], dim=-1)


class DiTBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH, elementwise_affine=False, eps=1e-6)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH, elementwise_affine=False, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(approximate="tanh"), nn.Linear(4 * WIDTH, WIDTH))
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 6 * WIDTH))

    def forward(self, x, c):
        s1, g1, a1, s2, g2, a2 = self.ada(c).chunk(6, dim=1)
        h = modulate(self.norm1(x), s1, g1)
        b, n, _ = h.shape
        q, k, v = self.qkv(h).view(b, n, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, WIDTH)
        x = x + a1.unsqueeze(1) * self.out(h)
        return x + a2.unsqueeze(1) * self.mlp(modulate(self.norm2(x), s2, g2))


class DiT(nn.Module):
    def __init__(self):
        super().__init__()
        self.x_embed = nn.Conv2d(4, WIDTH, PATCH, PATCH)
        self.t_embed = nn.Sequential(nn.Linear(256, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.y_embed = nn.Embedding(CLASSES + 1, WIDTH)
        self.register_buffer("pos", torch.randn(1, (args.latent // PATCH) ** 2, WIDTH))
        self.blocks = nn.ModuleList(DiTBlock() for _ in range(DEPTH))
        self.final_norm = nn.LayerNorm(WIDTH, elementwise_affine=False, eps=1e-6)
        self.final_ada = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 2 * WIDTH))
        self.final = nn.Linear(WIDTH, PATCH * PATCH * 8)  # noise and sigma

    def forward(self, x, t, y):
        x = self.x_embed(x).flatten(2).transpose(1, 2) + self.pos
        c = self.t_embed(timestep_embedding(t)) + self.y_embed(y)
        for block in self.blocks:
            x = checkpoint(block, x, c, use_reentrant=False) if args.ckpt else block(x, c)
        shift, scale = self.final_ada(c).chunk(2, dim=1)
        x = self.final(modulate(self.final_norm(x), shift, scale))
        side = args.latent // PATCH
        x = x.view(-1, side, side, PATCH, PATCH, 8)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(-1, 8, args.latent, args.latent)


@torch.no_grad()
def update_ema(ema, model, decay=0.9999):
    params = OrderedDict(model.named_parameters())
    for name, p in ema.named_parameters():
        p.mul_(decay).add_(params[name].data, alpha=1 - decay)


device = "cuda"
torch.backends.cuda.matmul.allow_tf32 = True
model = DiT().to(device)
ema = deepcopy(model).to(device).requires_grad_(False)
opt = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0)
abar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device=device), 0)
model.train()

for step in range(args.steps):
    x = torch.randn(args.batch_size, 4, args.latent, args.latent, device=device)  # latents of the VAE, cached
    y = torch.randint(0, CLASSES, (args.batch_size,), device=device)
    y = torch.where(torch.rand(args.batch_size, device=device) < 0.1, CLASSES, y)
    t = torch.randint(0, 1000, (args.batch_size,), device=device)
    noise = torch.randn_like(x)
    a = abar[t].view(-1, 1, 1, 1)
    with torch.autocast("cuda", torch.bfloat16):
        eps, sigma = model(a.sqrt() * x + (1 - a).sqrt() * noise, t, y).chunk(2, dim=1)
        loss = F.mse_loss(eps.float(), noise) + 1e-3 * sigma.float().square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    update_ema(ema, model)
    print(f"(step={step:07d}) Train Loss: {loss.item():.4f}")
