"""VQ-GAN for 256 x 256 pottery photographs. One 4080 SUPER."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Res(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, c_in), nn.GroupNorm(32, c_out)
        self.conv1 = nn.Conv2d(c_in, c_out, 3, padding=1)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1)
        self.skip = nn.Conv2d(c_in, c_out, 1) if c_in != c_out else nn.Identity()

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return h + self.skip(x)


class Encoder(nn.Module):
    def __init__(self, ch=128, mult=(1, 1, 2, 2, 4), z=256):
        super().__init__()
        layers, c = [nn.Conv2d(3, ch, 3, padding=1)], ch
        for i, m in enumerate(mult):
            layers += [Res(c, ch * m), Res(ch * m, ch * m)]
            c = ch * m
            if i < len(mult) - 1:
                layers.append(nn.Conv2d(c, c, 3, stride=2, padding=1))
        self.body = nn.Sequential(*layers, nn.GroupNorm(32, c), nn.SiLU(), nn.Conv2d(c, z, 3, padding=1))

    def forward(self, x):
        return self.body(x)


class Decoder(nn.Module):
    def __init__(self, ch=128, mult=(4, 2, 2, 1, 1), z=256):
        super().__init__()
        c = ch * mult[0]
        layers = [nn.Conv2d(z, c, 3, padding=1)]
        for i, m in enumerate(mult):
            layers += [Res(c, ch * m), Res(ch * m, ch * m)]
            c = ch * m
            if i < len(mult) - 1:
                layers += [nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(c, c, 3, padding=1)]
        self.body = nn.Sequential(*layers, nn.GroupNorm(32, c), nn.SiLU())
        self.out = nn.Conv2d(c, 3, 3, padding=1)

    def forward(self, z):
        return self.out(self.body(z))


class Codebook(nn.Module):
    def __init__(self, n=16384, d=256):
        super().__init__()
        self.table = nn.Embedding(n, d)
        nn.init.uniform_(self.table.weight, -1 / n, 1 / n)

    def forward(self, z):
        b, d, h, w = z.shape
        flat = z.permute(0, 2, 3, 1).reshape(-1, d)
        distance = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.table.weight.t() + self.table.weight.pow(2).sum(1)
        index = distance.argmin(1)
        q = self.table(index).view(b, h, w, d).permute(0, 3, 1, 2)
        loss = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
        return z + (q - z).detach(), loss


class PatchGAN(nn.Module):
    def __init__(self, c=64):
        super().__init__()
        layers = [nn.Conv2d(3, c, 4, 2, 1), nn.LeakyReLU(0.2)]
        for i in range(3):
            layers += [nn.Conv2d(c * 2**i, c * 2 ** (i + 1), 4, 2 if i < 2 else 1, 1, bias=False),
                       nn.BatchNorm2d(c * 2 ** (i + 1)), nn.LeakyReLU(0.2)]
        self.body = nn.Sequential(*layers, nn.Conv2d(c * 8, 1, 4, 1, 1))

    def forward(self, x):
        return self.body(x)


parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=12)
parser.add_argument("--steps", type=int, default=1000)
args = parser.parse_args()

device = "cuda"
encoder, decoder, codebook, critic = (m.to(device) for m in (Encoder(), Decoder(), Codebook(), PatchGAN()))
opt_g = torch.optim.Adam([*encoder.parameters(), *decoder.parameters(), *codebook.parameters()], lr=4.5e-6 * args.batch, betas=(0.5, 0.9))
opt_d = torch.optim.Adam(critic.parameters(), lr=4.5e-6 * args.batch, betas=(0.5, 0.9))

for step in range(args.steps):
    image = torch.rand(args.batch, 3, 256, 256, device=device) * 2 - 1
    z, vq_loss = codebook(encoder(image))
    fake = decoder(z)
    rec = (fake - image).abs().mean()
    g_loss = -critic(fake).mean()
    # taming-transformers' adaptive weight
    last = decoder.out.weight
    g_rec = torch.autograd.grad(rec, last, retain_graph=True)[0]
    g_adv = torch.autograd.grad(g_loss, last, retain_graph=True)[0]
    weight = (g_rec.norm() / (g_adv.norm() + 1e-4)).clamp(0, 1e4).detach()
    opt_g.zero_grad()
    (rec + vq_loss + 0.8 * weight * g_loss).backward(retain_graph=True)
    opt_g.step()

    d_loss = 0.5 * (F.relu(1 - critic(image)).mean() + F.relu(1 + critic(fake.detach())).mean())
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
    if step % 50 == 0:
        print(step, rec.item(), d_loss.item())
