"""GPT-2 124M from scratch: bf16, PyTorch's layers and attention; compiled, or under DDP."""

import argparse
import os

import torch
import torch.nn.functional as F
from torch import nn

CONTEXT, DIM, HEADS, LAYERS, DROP = 1024, 768, 12, 12, 0.1


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.out = nn.Linear(DIM, DIM)

    def forward(self, x):
        batch, tokens, _ = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, HEADS, DIM // HEADS)
        queries, keys, values = qkv.permute(2, 0, 3, 1, 4)
        dropout = DROP if self.training else 0.0
        mixed = F.scaled_dot_product_attention(
            queries, keys, values, dropout_p=dropout, is_causal=True
        )
        return self.out(mixed.transpose(1, 2).contiguous().view(batch, tokens, DIM))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        gelu = nn.GELU(approximate="tanh")
        self.feed = nn.Sequential(nn.Linear(DIM, 4 * DIM), gelu, nn.Linear(4 * DIM, DIM))
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.drop = nn.Dropout(DROP)

    def forward(self, x):
        shortcut = x
        x = self.norm1(x)
        x = self.attention(x)
        x = self.drop(x)
        x = x + shortcut
        shortcut = x
        x = self.norm2(x)
        x = self.feed(x)
        x = self.drop(x)
        return x + shortcut


class GPT(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.tokens = nn.Embedding(vocab, DIM)
        self.positions = nn.Embedding(CONTEXT, DIM)
        self.drop = nn.Dropout(DROP)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, vocab, bias=False)

    def forward(self, index):
        x = self.tokens(index) + self.positions(torch.arange(index.shape[1], device=index.device))
        return self.head(self.norm(self.blocks(self.drop(x))))


def loss_of(model, device, vocab, batch):
    text = torch.randint(0, vocab, (batch, CONTEXT + 1))
    inputs, targets = text[:, :-1].to(device), text[:, 1:].to(device)
    logits = model(inputs)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--vocab", type=int, default=50257)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--ddp", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda")
    torch.set_float32_matmul_precision("high")
    model = GPT(args.vocab)
    if args.compile:
        model = torch.compile(model)
    model.to(device).to(torch.bfloat16)
    if args.ddp:
        rank = int(os.environ["RANK"])
        torch.distributed.init_process_group("nccl")
        model = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.1, fused=True)
    for step in range(4):
        optimizer.zero_grad()
        loss = loss_of(model, device, args.vocab, args.batch)
        loss.backward()
        optimizer.step()
        if step % 2 == 0:
            model.eval()
            with torch.no_grad():
                loss_of(model, device, args.vocab, args.batch).item()
            model.train()
    print(torch.cuda.memory_reserved() / 1024**3)


main()
