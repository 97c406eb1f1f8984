"""Train a small Llama under ``torch.compile`` with FSDP2 or DDP, in a group that moves nothing.

``python sharded.py fsdp --compile --checkpoint``: on a CPU FSDP2's group of two is PyTorch's fake
one, and DDP's has one process of gloo; where there is ``cuda``, a launcher made the group.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from train import VOCABULARY, Checkpointed, blocks_of, transformer, wrap_blocks

SIZES = {"fsdp": 2, "ddp": 1}
"""Processes by way of sharding."""


def join(way: str) -> str:
    """Make the process group; return the device."""
    if torch.cuda.is_available():
        dist.init_process_group("nccl")
        return "cuda"
    if way == "fsdp":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=SIZES[way])
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=SIZES[way])
    return "cpu"


def build(args: argparse.Namespace, device: str) -> nn.Module:
    """Return the model, checkpointed, compiled (as a whole in DDP, by blocks in FSDP2), sharded."""
    model = transformer("llama", 4).to(device)
    if args.checkpoint:
        wrap_blocks(model, Checkpointed)
    if args.way == "ddp":
        model = DistributedDataParallel(model)
        return torch.compile(model) if args.compile else model
    if args.compile:
        wrap_blocks(model, torch.compile)
    mesh = init_device_mesh(device, (SIZES[args.way],))
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main() -> None:
    """Train as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=tuple(SIZES))
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--checkpoint", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    device = join(args.way)
    model = build(args, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(3):
        ids = torch.randint(VOCABULARY, (4, 256), device=device)
        flat = model(ids).logits[:, :-1].flatten(0, 1).float()
        loss = functional.cross_entropy(flat, ids[:, 1:].flatten())
        del flat
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
