"""ViT-L/16 at 384 pixels from scratch on our herbarium scans: mixup, compiled, one card."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--image-size", type=int, default=384)
parser.add_argument("--dim", type=int, default=1024)
parser.add_argument("--depth", type=int, default=24)
parser.add_argument("--heads", type=int, default=16)
parser.add_argument("--classes", type=int, default=15501)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--no-compile", action="store_true")
args = parser.parse_args()


class Block(nn.Module):
    def __init__(self, dim, heads, drop_path=0.1):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim * 4), nn.GELU(), nn.Linear(dim * 4, dim))
        self.gamma1 = nn.Parameter(1e-4 * torch.ones(dim))
        self.gamma2 = nn.Parameter(1e-4 * torch.ones(dim))
        self.drop_path = drop_path

    def drop(self, x):
        if not self.training or self.drop_path == 0:
            return x
        keep = 1 - self.drop_path
        mask = x.new_empty(x.shape[0], 1, 1).bernoulli_(keep)
        return x * mask / keep

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v)
        x = x + self.drop(self.gamma1 * self.proj(a.transpose(1, 2).reshape(b, n, d)))
        return x + self.drop(self.gamma2 * self.mlp(self.norm2(x)))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        n = (args.image_size // 16) ** 2
        self.patch = nn.Conv2d(3, args.dim, 16, 16)
        self.cls = nn.Parameter(torch.zeros(1, 1, args.dim))
        self.pos = nn.Parameter(torch.randn(1, n + 1, args.dim) * 0.02)
        self.blocks = nn.ModuleList([Block(args.dim, args.heads) for _ in range(args.depth)])
        self.norm = nn.LayerNorm(args.dim)
        self.head = nn.Linear(args.dim, args.classes)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


torch.set_float32_matmul_precision("high")
model = ViT().cuda()
print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")
decay = [p for p in model.parameters() if p.ndim > 1]
rest = [p for p in model.parameters() if p.ndim <= 1]
opt = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.3}, {"params": rest, "weight_decay": 0.0}],
    lr=1e-3, betas=(0.9, 0.99), fused=True,
)
net = model if args.no_compile else torch.compile(model)

for step in range(args.steps):
    images = torch.randn(args.batch_size, 3, args.image_size, args.image_size).cuda(non_blocking=True)
    labels = torch.randint(0, args.classes, (args.batch_size,)).cuda(non_blocking=True)
    lam = float(torch.distributions.Beta(0.8, 0.8).sample())
    images = lam * images + (1 - lam) * images.flip(0)
    onehot = F.one_hot(labels, args.classes).float()
    targets = lam * onehot + (1 - lam) * onehot.flip(0)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(net(images), targets, label_smoothing=0.1)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)
    print(step, loss.item())
