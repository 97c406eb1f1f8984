"""GPT-2 124M from scratch, trained on one GPU: in fp32 or bf16, layers by hand or PyTorch's."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, CONTEXT, DIM, HEADS, LAYERS, DROP, BATCH = 50257, 1024, 768, 12, 12, 0.1, 8
parser = argparse.ArgumentParser()
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--torch-layers", action="store_true")
args = parser.parse_args()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(DIM, DIM, bias=False)
        self.key = nn.Linear(DIM, DIM, bias=False)
        self.value = nn.Linear(DIM, DIM, bias=False)
        self.out = nn.Linear(DIM, DIM)
        self.dropout = nn.Dropout(DROP)
        if not args.bf16:
            self.register_buffer("mask", torch.triu(torch.ones(CONTEXT, CONTEXT), diagonal=1))

    def forward(self, x):
        batch, tokens, _ = x.shape
        keys, queries, values = self.key(x), self.query(x), self.value(x)
        keys = keys.view(batch, tokens, HEADS, DIM // HEADS).transpose(1, 2)
        values = values.view(batch, tokens, HEADS, DIM // HEADS).transpose(1, 2)
        queries = queries.view(batch, tokens, HEADS, DIM // HEADS).transpose(1, 2)
        scores = queries @ keys.transpose(2, 3)
        if not args.bf16:
            mask = self.mask.bool()[:tokens, :tokens]
        else:
            mask = torch.triu(
                torch.ones(tokens, tokens, dtype=torch.bool, device=x.device), diagonal=1
            )
        scores.masked_fill_(mask, -torch.inf)
        weights = torch.softmax(scores / keys.shape[-1] ** 0.5, dim=-1)
        weights = self.dropout(weights)
        context = (weights @ values).transpose(1, 2).reshape(batch, tokens, DIM)
        return self.out(context)


class OwnLayerNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))
        self.shift = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        mean = x.mean(dim=-1, keepdim=True)
        var = x.var(dim=-1, keepdim=True, unbiased=False)
        return self.scale * ((x - mean) / torch.sqrt(var + 1e-5)) + self.shift


class OwnGELU(nn.Module):
    def forward(self, x):
        return (
            0.5
            * x
            * (
                1
                + torch.tanh(
                    torch.sqrt(torch.tensor(2.0 / torch.pi)) * (x + 0.044715 * torch.pow(x, 3))
                )
            )
        )


def norm():
    return nn.LayerNorm(DIM) if args.torch_layers else OwnLayerNorm(DIM)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        gelu = nn.GELU(approximate="tanh") if args.torch_layers else OwnGELU()
        self.feed = nn.Sequential(nn.Linear(DIM, 4 * DIM), gelu, nn.Linear(4 * DIM, DIM))
        self.norm1, self.norm2 = norm(), norm()
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
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, DIM)
        self.positions = nn.Embedding(CONTEXT, DIM)
        self.drop = nn.Dropout(DROP)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = norm()
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, index):
        _, length = index.shape
        x = self.tokens(index) + self.positions(torch.arange(length, device=index.device))
        return self.head(self.norm(self.blocks(self.drop(x))))


def loss_of(model, inputs, targets, device):
    inputs, targets = inputs.to(device), targets.to(device)
    logits = model(inputs)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batches(count):
    for _ in range(count):
        text = torch.randint(0, VOCAB, (BATCH, CONTEXT + 1))
        yield text[:, :-1], text[:, 1:]


def main():
    torch.manual_seed(123)
    device = torch.device("cuda")
    if args.bf16:
        torch.set_float32_matmul_precision("high")
    model = GPT()
    model.to(device)
    if args.bf16:
        model.to(torch.bfloat16)
    kind = dict(fused=True) if args.bf16 else dict()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.1, **kind)
    for step, (inputs, targets) in enumerate(batches(4)):
        optimizer.zero_grad()
        loss = loss_of(model, inputs, targets, device)
        loss.backward()
        optimizer.step()
        if step % 2 == 0:
            model.eval()
            with torch.no_grad():
                for held_inputs, held_targets in batches(1):
                    loss_of(model, held_inputs, held_targets, device).item()
            model.train()
    print(torch.cuda.memory_allocated() / 1024**3, torch.cuda.memory_reserved() / 1024**3)


main()
