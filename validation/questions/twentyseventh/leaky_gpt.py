"""A GPT of 350 million parameters, letter by letter. Runs for an hour, then CUDA out of memory. Why?"""
import math

import torch
from torch import nn
from torch.nn import functional as F

VOCAB, WIDTH, DEPTH, HEADS, LENGTH, BATCH = 32000, 1024, 24, 16, 1024, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, HEADS, c // HEADS).transpose(1, 2) for p in self.qkv(self.ln1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, WIDTH)
        self.pos = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)), x


def main():
    device = "cuda"
    model = GPT().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    history, running = [], 0.0
    for step in range(2000):
        ids = torch.randint(0, VOCAB, (BATCH, LENGTH + 1), device=device)
        with torch.autocast("cuda", torch.bfloat16):
            logits, hidden = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        running = 0.98 * running + 0.02 * loss  # for the plot
        history.append((step, loss, hidden[:, -1]))  # last states, for a t-SNE later
        if step % 50 == 0:
            print(step, float(running), math.exp(min(20.0, float(loss))))


if __name__ == "__main__":
    main()
