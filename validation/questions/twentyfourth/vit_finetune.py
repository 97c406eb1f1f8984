"""ViT-L/16 in plain torch, 384 px, our 312 kinds of moths. Training is fine, then evaluation dies."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(b, n, c))


class Block(nn.Module):
    def __init__(self, dim, heads, mlp_ratio=4.0):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.ls1 = nn.Parameter(torch.full((dim,), 1e-5))
        self.norm2 = nn.LayerNorm(dim)
        hidden = int(dim * mlp_ratio)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
        self.ls2 = nn.Parameter(torch.full((dim,), 1e-5))

    def forward(self, x):
        x = x + self.ls1 * self.attn(self.norm1(x))
        return x + self.ls2 * self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, img=384, patch=16, dim=1024, depth=24, heads=16, classes=312):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, (img // patch) ** 2 + 1, dim) * 0.02)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def batches(n, size, img, device):
    for _ in range(n):
        yield torch.randn(size, 3, img, img, device=device), torch.randint(0, 312, (size,), device=device)


def evaluate(model, args, device):
    model.eval()
    logits, targets = [], []
    for images, labels in batches(8, args.batch_size, args.img, device):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits.append(model(images))
        targets.append(labels)
    accuracy = (torch.cat(logits).argmax(-1) == torch.cat(targets)).float().mean()
    model.train()
    return accuracy.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--img", type=int, default=384)
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()
    device = torch.device("cuda")
    model = ViT(img=args.img).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5, weight_decay=0.05)
    losses = []
    for images, labels in batches(args.steps, args.batch_size, args.img, device):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    print("loss", (sum(losses) / len(losses)).item(), "accuracy", evaluate(model, args, device))


if __name__ == "__main__":
    main()
