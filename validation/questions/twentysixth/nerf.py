"""NeRF of my garden shed, plain MLP, 4060 laptop. Trains; crashes when it renders the test view."""
import torch
import torch.nn as nn


def encode(x, bands):
    f = 2.0 ** torch.arange(bands, device=x.device) * torch.pi
    a = x[..., None] * f
    return torch.cat([x, a.sin().flatten(-2), a.cos().flatten(-2)], -1)


class NeRF(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        i, j = 3 + 3 * 2 * 10, 3 + 3 * 2 * 4
        self.first = nn.Sequential(*[m for k in range(5) for m in (nn.Linear(i if k == 0 else width, width), nn.ReLU())])
        self.second = nn.Sequential(*[m for k in range(3) for m in (nn.Linear(i + width if k == 0 else width, width), nn.ReLU())])
        self.sigma, self.feature = nn.Linear(width, 1), nn.Linear(width, width)
        self.colour = nn.Sequential(nn.Linear(width + j, width // 2), nn.ReLU(), nn.Linear(width // 2, 3), nn.Sigmoid())

    def forward(self, x, d):
        e = encode(x, 10)
        h = self.second(torch.cat([e, self.first(e)], -1))
        return self.sigma(h).relu(), self.colour(torch.cat([self.feature(h), encode(d, 4)], -1))


def render(net, origin, direction, samples=192, near=2.0, far=6.0):
    t = torch.linspace(near, far, samples, device=origin.device) + torch.rand(*origin.shape[:-1], samples, device=origin.device) * (far - near) / samples
    x = origin[..., None, :] + direction[..., None, :] * t[..., None]
    sigma, rgb = net(x, direction[..., None, :].expand_as(x))
    delta = torch.cat([t[..., 1:] - t[..., :-1], torch.full_like(t[..., :1], 1e10)], -1)
    alpha = 1 - torch.exp(-sigma.squeeze(-1) * delta)
    through = torch.cumprod(torch.cat([torch.ones_like(alpha[..., :1]), 1 - alpha + 1e-10], -1), -1)[..., :-1]
    return ((alpha * through)[..., None] * rgb).sum(-2)


coarse, fine = NeRF().cuda(), NeRF().cuda()
opt = torch.optim.Adam([*coarse.parameters(), *fine.parameters()], lr=5e-4)
for step in range(200000):
    o, d, target = (torch.randn(2048, 3, device="cuda") for _ in range(3))
    loss = (render(coarse, o, d, 64) - target).square().mean() + (render(fine, o, d) - target).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 500 == 2:
        o, d, target = (torch.randn(400, 400, 3, device="cuda") for _ in range(3))
        view = render(fine, o, d)
        psnr = -10 * torch.log10((view - target).square().mean())
        print(step, loss.item(), psnr.item())
