"""A small mixture of my own: capacity factor, shared expert, torch.compile, Muon for matrices. One H200."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--batch", type=int, default=16)
p.add_argument("--length", type=int, default=2048)
p.add_argument("--layers", type=int, default=16)
p.add_argument("--experts", type=int, default=32)
p.add_argument("--capacity", type=float, default=1.25)
p.add_argument("--no-compile", action="store_true")
args = p.parse_args()
D, H, FF, V, K = 1024, 16, 1408, 50304, 4


class Experts(nn.Module):
    def __init__(self, n, capacity):
        super().__init__()
        self.n, self.capacity = n, capacity
        self.router = nn.Linear(D, n, bias=False)
        self.up = nn.Parameter(torch.randn(n, D, 2 * FF) * D**-0.5)
        self.down = nn.Parameter(torch.randn(n, FF, D) * FF**-0.5)
        self.shared = nn.Sequential(nn.Linear(D, FF), nn.SiLU(), nn.Linear(FF, D))

    def forward(self, x):
        b, t, d = x.shape
        flat = x.reshape(-1, d)
        n = flat.shape[0]
        room = int(self.capacity * n * K / self.n)
        probs = self.router(flat).float().softmax(-1)
        weight, chosen = probs.topk(K, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        onehot = F.one_hot(chosen.reshape(-1), self.n)
        place = ((onehot.cumsum(0) - 1) * onehot).sum(-1)
        keep = place < room
        slot = (chosen.reshape(-1) * room + place).clamp(max=self.n * room - 1)
        source = torch.arange(n, device=x.device).repeat_interleave(K)
        buffer = torch.zeros(self.n * room, d, device=x.device, dtype=x.dtype)
        buffer = buffer.index_add(0, slot, flat[source] * keep[:, None].to(x.dtype))
        a, g = torch.bmm(buffer.view(self.n, room, d), self.up.to(x.dtype)).chunk(2, -1)
        done = torch.bmm(F.silu(g) * a, self.down.to(x.dtype)).view(-1, d)
        picked = done[slot] * (weight.reshape(-1) * keep)[:, None].to(x.dtype)
        out = torch.zeros_like(flat).index_add(0, source, picked)
        balance = self.n * (onehot.float().mean(0) * probs.mean(0)).sum()
        return (out + self.shared(flat)).view(b, t, d), balance


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.moe = Experts(args.experts, args.capacity)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, D))
        y, balance = self.moe(self.n2(x))
        return x + y, balance


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(V, D)
        self.blocks = nn.ModuleList(Block() for _ in range(args.layers))
        self.norm, self.head = nn.RMSNorm(D), nn.Linear(D, V, bias=False)

    def forward(self, tokens, labels):
        x, aux = self.embed(tokens), 0.0
        for block in self.blocks:
            x, balance = block(x)
            aux = aux + balance
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.view(-1, V), labels.view(-1)) + 0.01 * aux / len(self.blocks)


def newton_schulz(g, steps=5):
    x = g.bfloat16()
    turned = x.size(-2) > x.size(-1)
    x = x.mT if turned else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if turned else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is None:
                    continue
                state = self.state[w]
                if "m" not in state:
                    state["m"] = torch.zeros_like(w.grad)
                m = state["m"]
                m.lerp_(w.grad, 1 - group["momentum"])
                update = newton_schulz(w.grad.lerp(m, group["momentum"]))
                w.add_(update.to(w.dtype), alpha=-group["lr"] * max(1, w.size(-2) / w.size(-1)) ** 0.5)


model = Model().cuda()
matrices = [w for w in model.blocks.parameters() if w.ndim >= 2]
others = [w for n, w in model.named_parameters() if w.ndim < 2 or not n.startswith("blocks")]
optimizers = [Muon(matrices), torch.optim.AdamW(others, lr=3e-4, betas=(0.9, 0.95), fused=True)]
step_fn = model if args.no_compile else torch.compile(model)
for step in range(1000):
    tokens = torch.randint(0, V, (args.batch, args.length + 1), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = step_fn(tokens[:, :-1], tokens[:, 1:].contiguous())
    loss.backward()
    for o in optimizers:
        o.step()
    model.zero_grad(set_to_none=True)
    if step % 20 == 0:
        print(step, loss.item())
