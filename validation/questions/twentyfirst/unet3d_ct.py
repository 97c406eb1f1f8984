"""Kidneys and their tumours in CT: a 3D U-Net in plain PyTorch after nnU-Net; Dice and cross-entropy."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=2)
parser.add_argument("--patch", type=int, default=128)
parser.add_argument("--base", type=int, default=32)
parser.add_argument("--classes", type=int, default=4)
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()

device = torch.device("cuda")
torch.backends.cudnn.benchmark = True


class ConvBlock(nn.Sequential):
    def __init__(self, inside, outside, stride=1):
        super().__init__(
            nn.Conv3d(inside, outside, 3, stride=stride, padding=1),
            nn.InstanceNorm3d(outside, affine=True),
            nn.LeakyReLU(0.01),
            nn.Conv3d(outside, outside, 3, padding=1),
            nn.InstanceNorm3d(outside, affine=True),
            nn.LeakyReLU(0.01),
        )


class UNet3D(nn.Module):
    def __init__(self, classes, base, depth=5):
        super().__init__()
        widths = [min(base * 2**level, 320) for level in range(depth)]
        self.down = nn.ModuleList(
            ConvBlock(1 if level == 0 else widths[level - 1], width, 1 if level == 0 else 2)
            for level, width in enumerate(widths)
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose3d(widths[level], widths[level - 1], 2, stride=2) for level in range(depth - 1, 0, -1)
        )
        self.merge = nn.ModuleList(
            ConvBlock(2 * widths[level - 1], widths[level - 1]) for level in range(depth - 1, 0, -1)
        )
        self.head = nn.Conv3d(widths[0], classes, 1)

    def forward(self, x):
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([up(x), skips.pop()], dim=1))
        return self.head(x)


class Scans(Dataset):
    def __init__(self, number, shape):
        self.number, self.shape = number, shape

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        return torch.randn(1, *self.shape), torch.randint(0, args.classes, self.shape)


def dice_loss(logits, labels):
    probabilities = logits.float().softmax(1)
    wanted = F.one_hot(labels, args.classes).permute(0, 4, 1, 2, 3).float()
    both = (probabilities * wanted).sum((2, 3, 4))
    return 1 - (2 * both / (probabilities.sum((2, 3, 4)) + wanted.sum((2, 3, 4)) + 1e-5)).mean()


model = UNet3D(args.classes, args.base).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.99, nesterov=True, weight_decay=3e-5)
scaler = torch.amp.GradScaler("cuda")
train = DataLoader(Scans(args.steps * args.batch_size, (args.patch,) * 3), batch_size=args.batch_size)
val = DataLoader(Scans(2, (224, 224, 160)), batch_size=1)

total = 0.0
model.train()
for images, labels in train:
    images, labels = images.to(device), labels.to(device)
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        logits = model(images)
        loss = F.cross_entropy(logits, labels) + dice_loss(logits, labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 12)
    scaler.step(optimizer)
    scaler.update()
    total += loss
print("train loss", float(total) / len(train))

model.eval()
dice = []
for images, labels in val:
    logits = model(images.to(device))
    dice.append(1 - dice_loss(logits, labels.to(device)))
print("val dice", torch.stack(dice).mean().item())
