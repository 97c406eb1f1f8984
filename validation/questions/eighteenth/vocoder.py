"""HiFi-GAN V1 for 22 kHz speech: generator, five period and three scale discriminators, two optimizers."""

import argparse
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--segment", type=int, default=8192)
parser.add_argument("--channels", type=int, default=512)
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()
device = torch.device("cuda:0")
torch.backends.cudnn.benchmark = True


class ResBlock(nn.Module):
    def __init__(self, c, k, dilations=(1, 3, 5)):
        super().__init__()
        self.first = nn.ModuleList(weight_norm(nn.Conv1d(c, c, k, dilation=d, padding=(k * d - d) // 2)) for d in dilations)
        self.second = nn.ModuleList(weight_norm(nn.Conv1d(c, c, k, padding=(k - 1) // 2)) for _ in dilations)

    def forward(self, x):
        for a, b in zip(self.first, self.second):
            x = x + b(F.leaky_relu(a(F.leaky_relu(x, 0.1)), 0.1))
        return x


class Generator(nn.Module):
    def __init__(self, c=args.channels, rates=(8, 8, 2, 2), kernels=(16, 16, 4, 4)):
        super().__init__()
        self.pre = weight_norm(nn.Conv1d(80, c, 7, padding=3))
        self.ups, self.res = nn.ModuleList(), nn.ModuleList()
        for i, (r, k) in enumerate(zip(rates, kernels)):
            self.ups.append(weight_norm(nn.ConvTranspose1d(c >> i, c >> (i + 1), k, r, padding=(k - r) // 2)))
            self.res.append(nn.ModuleList(ResBlock(c >> (i + 1), k) for k in (3, 7, 11)))
        self.post = weight_norm(nn.Conv1d(c >> len(rates), 1, 7, padding=3))

    def forward(self, x):
        x = self.pre(x)
        for up, blocks in zip(self.ups, self.res):
            x = up(F.leaky_relu(x, 0.1))
            x = sum(block(x) for block in blocks) / len(blocks)
        return torch.tanh(self.post(F.leaky_relu(x)))


class PeriodD(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p
        sizes = [1, 32, 128, 512, 1024]
        self.convs = nn.ModuleList(weight_norm(nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0))) for a, b in itertools.pairwise(sizes))
        self.convs.append(weight_norm(nn.Conv2d(1024, 1024, (5, 1), 1, (2, 0))))
        self.post = weight_norm(nn.Conv2d(1024, 1, (3, 1), 1, (1, 0)))

    def forward(self, x):
        if x.shape[-1] % self.p:
            x = F.pad(x, (0, self.p - x.shape[-1] % self.p), "reflect")
        x = x.view(x.shape[0], 1, -1, self.p)
        maps = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1)
            maps.append(x)
        return self.post(x).flatten(1), maps


class ScaleD(nn.Module):
    def __init__(self):
        super().__init__()
        spec = [(1, 128, 15, 1, 1), (128, 128, 41, 2, 4), (128, 256, 41, 2, 16), (256, 512, 41, 4, 16), (512, 1024, 41, 4, 16), (1024, 1024, 41, 1, 16), (1024, 1024, 5, 1, 1)]
        self.convs = nn.ModuleList(weight_norm(nn.Conv1d(a, b, k, s, padding=k // 2, groups=g)) for a, b, k, s, g in spec)
        self.post = weight_norm(nn.Conv1d(1024, 1, 3, padding=1))

    def forward(self, x):
        maps = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1)
            maps.append(x)
        return self.post(x).flatten(1), maps


class Discriminators(nn.Module):
    def __init__(self):
        super().__init__()
        self.periods = nn.ModuleList(PeriodD(p) for p in (2, 3, 5, 7, 11))
        self.scales = nn.ModuleList(ScaleD() for _ in range(3))

    def forward(self, x):
        outs = [d(x) for d in self.periods]
        for i, d in enumerate(self.scales):
            outs.append(d(F.avg_pool1d(x, 4, 2, 2) if i else x))
        return outs


bank = torch.rand(80, 513, device=device)
window = torch.hann_window(1024, device=device)


def mel(wav):
    spec = torch.stft(wav.squeeze(1), 1024, 256, 1024, window=window, return_complex=True).abs()
    return torch.log(torch.clamp(bank @ spec, min=1e-5))


G, D = Generator().to(device), Discriminators().to(device)
opt_g = torch.optim.AdamW(G.parameters(), 2e-4, betas=(0.8, 0.99))
opt_d = torch.optim.AdamW(D.parameters(), 2e-4, betas=(0.8, 0.99))

for step in range(args.steps):
    real = torch.randn(args.batch_size, 1, args.segment).clamp(-1, 1).to(device)
    features = mel(real)[..., : args.segment // 256]
    fake = G(features)

    opt_d.zero_grad()
    loss_d = 0
    for (r, _), (f, _) in zip(D(real), D(fake.detach())):
        loss_d = loss_d + ((1 - r) ** 2).mean() + (f**2).mean()
    loss_d.backward()
    opt_d.step()

    opt_g.zero_grad()
    loss_g = 45 * F.l1_loss(mel(fake), mel(real))
    for (_, maps_r), (f, maps_f) in zip(D(real), D(fake)):
        loss_g = loss_g + ((1 - f) ** 2).mean()
        loss_g = loss_g + 2 * sum(F.l1_loss(a, b) for a, b in zip(maps_f, maps_r))
    loss_g.backward()
    opt_g.step()
    print(f"steps: {step}, gen: {loss_g.item():.3f}, disc: {loss_d.item():.3f}")
