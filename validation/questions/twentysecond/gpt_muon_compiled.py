"""After the speedruns: a GPT with QK norm, ReLU squared and Muon for the matrices, compiled, on one card at home."""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn


def newton_schulz(g, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    if g.size(0) > g.size(1):
        x = x.T
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        m = x @ x.T
        x = a * x + (b * m + c * m @ m) @ x
    return x.T if g.size(0) > g.size(1) else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "buf" not in state:
                    state["buf"] = torch.zeros_like(p.grad)
                state["buf"].lerp_(p.grad, 1 - group["momentum"])
                update = newton_schulz(p.grad.lerp(state["buf"], group["momentum"]))
                p.add_(update.type_as(p), alpha=-group["lr"] * max(1, p.size(0) / p.size(1)) ** 0.5)


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos + b * sin, b * cos - a * sin), dim=-1)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.up = nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x, cos, sin):
        b, t, d = x.shape
        q, k, v = self.qkv(F.rms_norm(x, (d,))).view(b, t, 3, self.heads, d // self.heads).unbind(2)
        q, k = F.rms_norm(q, (q.size(-1),)), F.rms_norm(k, (k.size(-1),))
        q, k, v = rotate(q, cos, sin).transpose(1, 2), rotate(k, cos, sin).transpose(1, 2), v.transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(y)
        return x + self.down(F.relu(self.up(F.rms_norm(x, (d,)))).square())


class GPT(nn.Module):
    def __init__(self, vocab, dim, depth, heads, seq_len):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.head = nn.Linear(dim, vocab, bias=False)
        angles = torch.outer(torch.arange(seq_len), 10000 ** -(torch.arange(0, dim // heads, 2) / (dim // heads)))
        self.register_buffer("cos", angles.cos()[None, :, None].bfloat16(), persistent=False)
        self.register_buffer("sin", angles.sin()[None, :, None].bfloat16(), persistent=False)

    def forward(self, ids, targets):
        x = self.embed(ids).bfloat16()
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = 15 * torch.tanh(self.head(F.rms_norm(x, (x.size(-1),))).float() / 15)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


p = argparse.ArgumentParser()
p.add_argument("--batch", type=int, default=16)
p.add_argument("--seq-len", type=int, default=2048)
p.add_argument("--depth", type=int, default=12)
p.add_argument("--dim", type=int, default=1024)
p.add_argument("--steps", type=int, default=3)
p.add_argument("--no-compile", action="store_true")
args = p.parse_args()

model = GPT(50304, args.dim, args.depth, args.dim // 128, args.seq_len).cuda()
matrices = [q for q in model.blocks.parameters() if q.ndim == 2]
optimizers = [
    Muon(matrices),
    torch.optim.AdamW([*model.embed.parameters(), *model.head.parameters()], lr=3e-3, betas=(0.8, 0.95), fused=True),
]
if not args.no_compile:
    model = torch.compile(model, dynamic=False)
    newton_schulz = torch.compile(newton_schulz)
for step in range(args.steps):
    began = time.time()
    ids = torch.randint(0, 50304, (args.batch, args.seq_len + 1), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(ids[:, :-1], ids[:, 1:])
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    print(f"{step} loss {loss.item():.3f} {time.time() - began:.2f} s, {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")
