"""A 3D U-Net for segmenting CT volumes, mixed precision, patches of 128 voxels a side."""

import argparse

import torch
from torch import nn


def block(inputs, outputs):
    return nn.Sequential(
        nn.Conv3d(inputs, outputs, 3, padding=1, bias=False), nn.InstanceNorm3d(outputs, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
        nn.Conv3d(outputs, outputs, 3, padding=1, bias=False), nn.InstanceNorm3d(outputs, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, widths=(32, 64, 128, 256, 320), classes=14):
        super().__init__()
        self.down = nn.ModuleList(block(a, b) for a, b in zip((1, *widths), widths))
        self.up = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in zip(widths, widths[1:]))
        self.join = nn.ModuleList(block(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv3d(widths[0], classes, 1)

    def forward(self, x):
        kept = []
        for number, level in enumerate(self.down):
            x = level(x if number == 0 else nn.functional.max_pool3d(x, 2))
            kept.append(x)
        for up, join, skip in zip(reversed(self.up), reversed(self.join), reversed(kept[:-1])):
            x = join(torch.cat((up(x), skip), 1))
        return self.head(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--patch", type=int, default=128)
    args = parser.parse_args()
    model = UNet().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99, nesterov=True)
    scaler = torch.amp.GradScaler("cuda")
    side = (args.patch,) * 3
    for _ in range(3):
        volume = torch.randn(args.batch_size, 1, *side, device="cuda")
        labels = torch.randint(0, 14, (args.batch_size, *side), device="cuda")
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16):
            loss = nn.functional.cross_entropy(model(volume), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 12)
        scaler.step(optimizer)
        scaler.update()
        print(loss.item())


if __name__ == "__main__":
    main()
