"""Blocks of a GPT under checkpoint, each compiled: every second one recomputed, bf16."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.gate = (nn.Linear(width, 4 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        heads = self.qkv(self.norm_1(x)).view(b, t, 3, self.num_heads, c // self.num_heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        h = self.norm_2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Model(nn.Module):
    def __init__(self, vocab_size, width, num_layers, num_heads):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, width)
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(num_layers))
        self.head = nn.Linear(width, vocab_size, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for i, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if i % 2 else block(x)
        return self.head(x)


model = Model(32000, 1536, 16, 12).to("cuda", torch.bfloat16)
for block in model.blocks:
    block.compile()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(4):
    data = torch.randint(32000, (8, 2049), device="cuda")
    logits = model(data[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1).float(), data[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
