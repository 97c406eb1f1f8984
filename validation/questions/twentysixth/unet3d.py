"""Segment liver vessels in CT, patches of 128^3, deep supervision, after nnU-Net. Hospital's workstation."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def conv(i, o, stride=1):
    return nn.Sequential(
        nn.Conv3d(i, o, 3, stride, 1), nn.InstanceNorm3d(o, affine=True), nn.LeakyReLU(0.01, inplace=True),
        nn.Conv3d(o, o, 3, 1, 1), nn.InstanceNorm3d(o, affine=True), nn.LeakyReLU(0.01, inplace=True))


class UNet3D(nn.Module):
    def __init__(self, widths=(32, 64, 128, 256, 320, 320), classes=3):
        super().__init__()
        self.down = nn.ModuleList()
        c = 1
        for i, w in enumerate(widths):
            self.down.append(conv(c, w, 1 if i == 0 else 2))
            c = w
        self.up, self.merge, self.heads = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for w in reversed(widths[:-1]):
            self.up.append(nn.ConvTranspose3d(c, w, 2, 2))
            self.merge.append(conv(2 * w, w))
            self.heads.append(nn.Conv3d(w, classes, 1))
            c = w

    def forward(self, x):
        skips, outs = [], []
        for d in self.down:
            x = d(x)
            skips.append(x)
        for up, merge, head, skip in zip(self.up, self.merge, self.heads, reversed(skips[:-1])):
            x = merge(torch.cat([up(x), skip], 1))
            outs.append(head(x))
        return outs[::-1]


def dice_ce(logits, target):
    ce = F.cross_entropy(logits, target)
    probs = logits.softmax(1)
    hot = F.one_hot(target, logits.shape[1]).permute(0, 4, 1, 2, 3).float()
    both = (probs * hot).sum((2, 3, 4))
    dice = 2 * both / (probs.sum((2, 3, 4)) + hot.sum((2, 3, 4)) + 1e-5)
    return ce + 1 - dice[:, 1:].mean()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--batch", type=int, default=2)
    p.add_argument("--patch", type=int, default=128)
    args = p.parse_args()
    torch.backends.cudnn.benchmark = True
    net = UNet3D().cuda()
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.99, nesterov=True, weight_decay=3e-5)
    scaler = torch.amp.GradScaler("cuda")
    for it in range(250):
        x = torch.randn(args.batch, 1, args.patch, args.patch, args.patch).cuda()
        y = torch.randint(0, 3, (args.batch, args.patch, args.patch, args.patch)).cuda()
        with torch.autocast("cuda", dtype=torch.float16):
            outs = net(x)
            loss = 0
            for i, out in enumerate(outs[:4]):
                target = F.interpolate(y[:, None].float(), size=out.shape[2:], mode="nearest")[:, 0].long()
                loss = loss + 0.5**i * dice_ce(out, target)
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 12)
        scaler.step(opt)
        scaler.update()
        if it % 10 == 0:
            print(it, float(loss))


if __name__ == "__main__":
    main()
