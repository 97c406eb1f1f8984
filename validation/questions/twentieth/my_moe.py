"""A mixture of my own to understand them: 12 blocks, 8 experts of which 2 are used, on 1,024 characters of opera texts."""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--block-size", type=int, default=1024)
parser.add_argument("--n-layer", type=int, default=12)
parser.add_argument("--n-embd", type=int, default=768)
parser.add_argument("--n-experts", type=int, default=8)
parser.add_argument("--top-k", type=int, default=2)
parser.add_argument("--iters", type=int, default=3)
args = parser.parse_args()

device = "cuda"
torch.manual_seed(1337)
torch.set_float32_matmul_precision("high")
vocab_size = 50304


class CausalSelfAttention(nn.Module):
    def __init__(self, width, heads=12):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = (z.view(b, t, self.heads, c // self.heads).transpose(1, 2) for z in self.c_attn(x).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class Expert(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        return self.net(x)


class SparseMoE(nn.Module):
    def __init__(self, width, n_experts, top_k):
        super().__init__()
        self.gate = nn.Linear(width, n_experts, bias=False)
        self.experts = nn.ModuleList(Expert(width) for _ in range(n_experts))
        self.top_k = top_k

    def forward(self, x):
        shape = x.shape
        x = x.view(-1, shape[-1])
        probs = F.softmax(self.gate(x), dim=-1, dtype=torch.float)
        weights, chosen = torch.topk(probs, self.top_k, dim=-1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        out = torch.zeros_like(x)
        for n, expert in enumerate(self.experts):
            rows, which = torch.where(chosen == n)
            if rows.numel() == 0:
                continue
            out[rows] += weights[rows, which, None] * expert(x[rows])
        load = F.one_hot(chosen, len(self.experts)).float().sum(1).mean(0)
        self.aux = len(self.experts) * (load * probs.mean(0)).sum()
        return out.view(shape)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = CausalSelfAttention(width)
        self.moe = SparseMoE(width, args.n_experts, args.top_k)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.moe(self.ln_2(x))


class MoEGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, args.n_embd)
        self.wpe = nn.Embedding(args.block_size, args.n_embd)
        self.h = nn.ModuleList(Block(args.n_embd) for _ in range(args.n_layer))
        self.ln_f = nn.LayerNorm(args.n_embd)
        self.lm_head = nn.Linear(args.n_embd, vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight
        for name, p in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * args.n_layer))

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        loss = F.cross_entropy(logits.view(-1, vocab_size), targets.view(-1))
        return loss + 0.01 * sum(block.moe.aux for block in self.h)


model = MoEGPT().to(device)
print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
data = torch.randint(0, vocab_size, (1_000_000,))
for it in range(args.iters):
    ix = torch.randint(len(data) - args.block_size - 1, (args.batch_size,))
    x = torch.stack([data[i : i + args.block_size] for i in ix]).to(device)
    y = torch.stack([data[i + 1 : i + 1 + args.block_size] for i in ix]).to(device)
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        loss = model(x, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"iter {it}: loss {loss.item():.4f}, lr 3e-4")
