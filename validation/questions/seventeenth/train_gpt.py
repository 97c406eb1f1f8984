"""GPT-2 small from scratch with Muon, after the speed runs.

torchrun --standalone --nproc_per_node 8 train_gpt.py --batch_size 32 --compile
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=32)
parser.add_argument("--seq_len", type=int, default=1024)
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--width", type=int, default=768)
parser.add_argument("--heads", type=int, default=6)
parser.add_argument("--vocab_size", type=int, default=50304)
parser.add_argument("--accumulation", type=int, default=2)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--compile", action="store_true")
args = parser.parse_args()


class Rotary(nn.Module):
    def __init__(self, head_width, base=10000.0):
        super().__init__()
        frequencies = 1.0 / base ** (torch.arange(0, head_width, 2).float() / head_width)
        angles = torch.outer(torch.arange(args.seq_len).float(), frequencies)
        self.register_buffer("cos", angles.cos()[None, :, None, :], persistent=False)
        self.register_buffer("sin", angles.sin()[None, :, None, :], persistent=False)

    def forward(self, x):
        cos, sin = self.cos[:, : x.size(1)].to(x.dtype), self.sin[:, : x.size(1)].to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos + second * sin, second * cos - first * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        nn.init.zeros_(self.out.weight)
        self.rotary = Rotary(width // heads)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).unbind(2)
        q, k = (F.rms_norm(t, (t.size(-1),)) for t in (q, k))
        q, k = self.rotary(q), self.rotary(k)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        nn.init.zeros_(self.down.weight)

    def forward(self, x):
        return self.down(F.relu(self.up(x)).square())


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = Attention(width, heads)
        self.mlp = MLP(width)

    def forward(self, x):
        x = x + self.attention(F.rms_norm(x, (x.size(-1),)))
        return x + self.mlp(F.rms_norm(x, (x.size(-1),)))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(args.vocab_size, args.width)
        self.blocks = nn.ModuleList(Block(args.width, args.heads) for _ in range(args.layers))
        self.head = nn.Linear(args.width, args.vocab_size, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, ids, targets):
        x = F.rms_norm(self.embedding(ids), (args.width,))
        for block in self.blocks:
            x = block(x)
        logits = self.head(F.rms_norm(x, (args.width,)))
        logits = 30 * torch.tanh(logits.float() / 30)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def main():
    dist.init_process_group("nccl")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    torch.manual_seed(0)

    raw = GPT().to(device)
    hidden = [p for p in raw.blocks.parameters() if p.ndim == 2]
    optimizers = [
        torch.optim.Muon(hidden, lr=0.02, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(
            [*raw.embedding.parameters(), *raw.head.parameters()],
            lr=3e-3,
            betas=(0.8, 0.95),
            weight_decay=0.0,
            fused=True,
        ),
    ]
    model = torch.compile(raw) if args.compile else raw
    model = DistributedDataParallel(model, device_ids=[local_rank], gradient_as_bucket_view=True)

    generator = torch.Generator().manual_seed(rank)
    for step in range(args.steps):
        for micro in range(args.accumulation):
            model.require_backward_grad_sync = micro == args.accumulation - 1
            rows = torch.randint(
                0, args.vocab_size, (args.batch_size, args.seq_len + 1), generator=generator
            ).to(device, non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(rows[:, :-1], rows[:, 1:]) / args.accumulation
            loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if rank == 0:
            print(f"step {step + 1}: loss {loss.item() * args.accumulation:.3f}")
    if rank == 0:
        print(f"peak memory: {torch.cuda.max_memory_allocated() // 2**20} MiB")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
