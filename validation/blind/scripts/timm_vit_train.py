"""timm 0.6's vision transformer in plain PyTorch, as its benchmark.py trains it (--bench train --amp): fp16 autocast, no
scaler, cross entropy, SGD with momentum 0.9, zero_grad() before the forward pass; attention written out (PyTorch 1.12)."""

import argparse

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)
        self.attn_drop, self.proj_drop = nn.Dropout(0.0), nn.Dropout(0.0)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = (
            self.qkv(x)
            .reshape(b, n, 3, self.heads, c // self.heads)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        attn = (q @ k.transpose(-2, -1)) * self.scale
        attn = self.attn_drop(attn.softmax(dim=-1))
        return self.proj_drop(self.proj((attn @ v).transpose(1, 2).reshape(b, n, c)))


class Mlp(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dim, eps=1e-6), Attention(dim, heads)
        self.norm2, self.mlp = nn.LayerNorm(dim, eps=1e-6), Mlp(dim)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, dim, depth, heads, patch, size):
        super().__init__()
        self.embed = nn.Conv2d(3, dim, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(dim, eps=1e-6), nn.Linear(dim, 1000)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.pos
        return self.head(self.norm(self.blocks(x))[:, 0])


p = argparse.ArgumentParser()
p.add_argument("--dim", type=int, default=768)
p.add_argument("--depth", type=int, default=12)
p.add_argument("--heads", type=int, default=12)
p.add_argument("--patch", type=int, default=16)
p.add_argument("--batch", type=int, default=192)
a = p.parse_args()
model = ViT(a.dim, a.depth, a.heads, a.patch, 224).cuda().train()
loss_fn = nn.CrossEntropyLoss().cuda()
opt = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
images = torch.randn(a.batch, 3, 224, 224, device="cuda")
target = torch.empty(a.batch, device="cuda", dtype=torch.long).random_(1000)
for _ in range(12):
    opt.zero_grad()
    with torch.autocast("cuda", torch.float16):
        loss = loss_fn(model(images), target)
    loss.backward()
    opt.step()
torch.cuda.synchronize()
