"""Four stages by torch.distributed.pipelining, a 7B of my own in bf16, 1F1B. torchrun --nproc_per_node 4 pp_1f1b.py"""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

p = argparse.ArgumentParser()
p.add_argument("--schedule", default="1f1b", choices=["1f1b", "gpipe"])
p.add_argument("--microbatches", type=int, default=16)
p.add_argument("--length", type=int, default=4096)
args = p.parse_args()
D, H, FF, V, LAYERS = 4096, 32, 11008, 64000, 32


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.gate, self.up, self.down = nn.Linear(D, FF, bias=False), nn.Linear(D, FF, bias=False), nn.Linear(FF, D, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, D))
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Part(nn.Module):
    def __init__(self, stage, stages):
        super().__init__()
        self.embed = nn.Embedding(V, D) if stage == 0 else None
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS // stages))
        self.head = nn.Sequential(nn.RMSNorm(D), nn.Linear(D, V, bias=False)) if stage == stages - 1 else None

    def forward(self, x):
        x = self.embed(x) if self.embed is not None else x
        for layer in self.layers:
            x = layer(x)
        return self.head(x) if self.head is not None else x


def loss_fn(logits, target):
    return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
part = Part(rank, world).to(device, torch.bfloat16)
stage = PipelineStage(part, rank, world, device)
kind = Schedule1F1B if args.schedule == "1f1b" else ScheduleGPipe
schedule = kind(stage, n_microbatches=args.microbatches, loss_fn=loss_fn)
opt = torch.optim.AdamW(part.parameters(), lr=3e-4, fused=True)
for step in range(10):
    tokens = torch.randint(0, V, (args.microbatches, args.length + 1), device=device)
    if rank == 0:
        schedule.step(tokens[:, :-1].contiguous())
    elif rank == world - 1:
        losses = []
        schedule.step(target=tokens[:, 1:].contiguous(), losses=losses)
        print(step, torch.stack(losses).mean().item())
    else:
        schedule.step()
    opt.step()
    opt.zero_grad()
dist.destroy_process_group()
