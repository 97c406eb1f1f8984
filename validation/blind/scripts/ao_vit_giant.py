"""DINOv2's ViT-giant (timm's vit_giant_patch14_dinov2) fine-tuned in bf16 with checkpoints, as torchao's benchmark does.

Written after timm's model from its description: 40 blocks of width 1,536, 24 heads, SwiGLU of 2 x 4,096 columns
packed in one matrix, LayerScale, 224 x 224 pixels in patches of 14 (257 tokens), 45 classes.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

DIM, HEADS, BLOCKS, INNER, CLASSES = 1536, 24, 40, 4096, 45


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, x):
        batch, tokens, _ = x.shape
        q, k, v = (
            self.qkv(x)
            .reshape(batch, tokens, 3, HEADS, DIM // HEADS)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(batch, tokens, DIM))


class SwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(DIM, 2 * INNER)
        self.fc2 = nn.Linear(INNER, DIM)

    def forward(self, x):
        gate, x = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(F.silu(gate) * x)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((DIM,), 1e-5))

    def forward(self, x):
        return x * self.gamma


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attn, self.ls1 = nn.LayerNorm(DIM, eps=1e-6), Attention(), Scale()
        self.norm2, self.mlp, self.ls2 = nn.LayerNorm(DIM, eps=1e-6), SwiGLU(), Scale()

    def forward(self, x):
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.ls2(self.mlp(self.norm2(x)))


class ViT(nn.Module):
    def __init__(self, patches):
        super().__init__()
        self.patch = nn.Conv2d(3, DIM, 14, 14)
        self.cls = nn.Parameter(torch.zeros(1, 1, DIM))
        self.pos = nn.Parameter(torch.zeros(1, patches + 1, DIM))
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(DIM, eps=1e-6)
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, images):
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(x.shape[0], -1, -1), x), dim=1) + self.pos
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x)[:, 0])


parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--pixels", type=int, default=224)
args = parser.parse_args()
model = ViT((args.pixels // 14) ** 2).bfloat16().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0, fused=True)
for _ in range(4):
    images = torch.randn(args.batch, 3, args.pixels, args.pixels).bfloat16()
    labels = torch.randint(0, CLASSES, (args.batch,))
    loss = F.cross_entropy(model(images.cuda()), labels.cuda())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(torch.cuda.max_memory_allocated() / 1e9)
