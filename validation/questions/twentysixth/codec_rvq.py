"""Neural audio codec at 24 kHz, residual quantiser, multi-scale STFT loss. Dies after 20 minutes, always a bit later if I lower the batch."""
import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH, SECONDS, RATE = 16, 2, 24000


class ResUnit(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.net = nn.Sequential(nn.ELU(), nn.Conv1d(c, c // 2, 3, dilation=dilation, padding=dilation), nn.ELU(), nn.Conv1d(c // 2, c, 1))

    def forward(self, x):
        return x + self.net(x)


def encoder(c=48, strides=(2, 4, 5, 8), dim=256):
    layers = [nn.Conv1d(1, c, 7, padding=3)]
    for s in strides:
        layers += [ResUnit(c, 1), ResUnit(c, 3), ResUnit(c, 9), nn.ELU(), nn.Conv1d(c, 2 * c, 2 * s, s, padding=(s + 1) // 2)]
        c *= 2
    return nn.Sequential(*layers, nn.ELU(), nn.Conv1d(c, dim, 3, padding=1))


def decoder(c=768, strides=(8, 5, 4, 2), dim=256):
    layers = [nn.Conv1d(dim, c, 7, padding=3)]
    for s in strides:
        layers += [nn.ELU(), nn.ConvTranspose1d(c, c // 2, 2 * s, s, padding=(s + 1) // 2, output_padding=s % 2)]
        c //= 2
        layers += [ResUnit(c, 1), ResUnit(c, 3), ResUnit(c, 9)]
    return nn.Sequential(*layers, nn.ELU(), nn.Conv1d(c, 1, 7, padding=3), nn.Tanh())


class RVQ(nn.Module):
    def __init__(self, books=8, size=1024, dim=256):
        super().__init__()
        self.books = nn.ModuleList(nn.Embedding(size, dim) for _ in range(books))

    def forward(self, z):
        z = z.transpose(1, 2)
        residual, total, loss = z, torch.zeros_like(z), 0
        for book in self.books:
            index = torch.cdist(residual.reshape(-1, z.shape[-1]), book.weight).argmin(-1)
            q = book(index).view_as(z)
            loss = loss + F.mse_loss(q, residual.detach()) + 0.25 * F.mse_loss(residual, q.detach())
            residual = residual - q.detach()
            total = total + q
        return (z + (total - z).detach()).transpose(1, 2), loss


def spectral(a, b):
    loss = 0
    for n in (2048, 1024, 512, 256, 128):
        window = torch.hann_window(n, device=a.device)
        sa, sb = (torch.stft(x.squeeze(1), n, n // 4, window=window, return_complex=True).abs() for x in (a, b))
        loss = loss + (sa - sb).abs().mean() + (sa.clamp(min=1e-5).log() - sb.clamp(min=1e-5).log()).abs().mean()
    return loss


enc, dec, rvq = encoder().cuda(), decoder().cuda(), RVQ().cuda()
params = [*enc.parameters(), *dec.parameters(), *rvq.parameters()]
opt = torch.optim.AdamW(params, lr=3e-4, betas=(0.8, 0.99))
running, history = 0.0, []
for step in range(10000):
    wave = torch.randn(BATCH, 1, SECONDS * RATE, device="cuda")
    z, commit = rvq(enc(wave))
    out = dec(z)
    n = min(out.shape[-1], wave.shape[-1])
    loss = spectral(out[..., :n], wave[..., :n]) + F.l1_loss(out[..., :n], wave[..., :n]) + commit
    opt.zero_grad()
    loss.backward()
    opt.step()
    running += loss
    history.append(out[0])  # to listen to later
    if step % 100 == 99:
        print(step, (running / (step + 1)).item())
