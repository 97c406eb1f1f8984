"""ViT-L/16 of torchvision, as rasbt/pytorch-memory-optim describes its runs: Adam, ten classes."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--precision", choices=["fp32", "fp16-mixed", "bf16"], default="fp32")
parser.add_argument("--optimizer", choices=["adam", "sgd"], default="adam")
args = parser.parse_args()

if args.precision != "fp32":
    torch.set_float32_matmul_precision("high")


class Block(nn.Module):
    def __init__(self, width=1024, heads=16, inner=4096):
        super().__init__()
        self.before = nn.LayerNorm(width, eps=1e-6)
        self.attention = nn.MultiheadAttention(width, heads, dropout=0.0, batch_first=True)
        self.dropout = nn.Dropout(0.0)
        self.between = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, inner),
            nn.GELU(),
            nn.Dropout(0.0),
            nn.Linear(inner, width),
            nn.Dropout(0.0),
        )

    def forward(self, hidden):
        x = self.before(hidden)
        x, _ = self.attention(x, x, x, need_weights=False)
        x = self.dropout(x)
        x = x + hidden
        y = self.between(x)
        y = self.mlp(y)
        return x + y


class ViT(nn.Module):
    def __init__(self, width=1024, blocks=24, classes=10):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, 197, width).normal_(std=0.02))
        self.dropout = nn.Dropout(0.0)
        self.blocks = nn.Sequential(*(Block() for _ in range(blocks)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).permute(0, 2, 1)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], dim=1)
        x = self.norm(self.blocks(self.dropout(x + self.positions)))
        return self.head(x[:, 0])


model = ViT()
if args.precision == "bf16":
    model = model.to(torch.bfloat16)
model = model.cuda()
if args.optimizer == "adam":
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-5)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
half = args.precision == "fp16-mixed"
scaler = torch.amp.GradScaler("cuda", enabled=half)


def batch():
    images = torch.rand(args.batch, 3, 224, 224).cuda()
    labels = torch.randint(0, 10, (args.batch,)).cuda()
    return (images.to(torch.bfloat16) if args.precision == "bf16" else images), labels


for step in range(4 * args.accumulate):
    model.train()
    images, labels = batch()
    with torch.autocast("cuda", torch.float16, enabled=half):
        logits = model(images)
    logits = logits.float() if half else logits
    loss = nn.functional.cross_entropy(logits, labels) / args.accumulate
    if args.accumulate == 1:
        optimizer.zero_grad()
    scaler.scale(loss).backward()
    if (step + 1) % args.accumulate == 0:
        scaler.step(optimizer)
        scaler.update()
        if args.accumulate > 1:
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        predicted = torch.argmax(logits, 1)

model.eval()
with torch.no_grad():
    for _ in range(2):
        images, labels = batch()
        with torch.autocast("cuda", torch.float16, enabled=half):
            predicted = torch.argmax(model(images), 1)
