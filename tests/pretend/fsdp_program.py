"""A sharded training program that runs for real on a CPU and on the pretend GPU.

As a script: runs every case as one rank of a world and writes the real peaks, by the profiler's
allocation events, with no tape near it. Its process group moves no data and everything else is
real. (With gloo a rank's peak depends on when gloo's own threads let go of a collective's tensors.)
"""

import gc
import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

WIDTH, DEPTH, TOKENS, VOCABULARY = 512, 4, 1536, 4096
FEW_TOKENS = 768
"""Where it runs for real, which takes as much longer as there are more."""


def cases(world_size):
    """Name the cases, and say how each trains."""
    flat = {"shape": (world_size,)}
    return {
        "zero-3": flat,
        "zero-2": {**flat, "reshard": False},
        "bf16": {**flat, "dtype": torch.bfloat16},
        "hsdp": {"shape": (2, world_size // 2)},
        "prefetch": {**flat, "prefetch": True},
        "hold": {**flat, "micro_batches": 3, "hold": True},
        "reduce-each": {**flat, "micro_batches": 3},
    }


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def build(  # noqa: PLR0913 - what FSDP2 can be told
    device, *, shape, reshard=True, dtype=None, prefetch=False, offload=False
):
    """Shard a model; ``shape`` is (shards,) or (replicas, shards)."""
    names = ("replicate", "shard")[-len(shape) :]
    mesh = init_device_mesh(torch.device(device).type, shape, mesh_dim_names=names)
    with torch.device("meta"):
        model = Model()
    how = {"mesh": mesh, "reshard_after_forward": reshard}
    if dtype is not None:
        how["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    if offload:
        how["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
    for layer in model.layers:
        fully_shard(layer, **how)
    fully_shard(model, **how)
    for now, later in zip(model.layers, list(model.layers)[1:], strict=False):
        if prefetch:
            now.set_modules_to_forward_prefetch([later])
    return model.to_empty(device="cpu" if offload else device)


def train(device, *, micro_batches=1, hold=False, tokens=TOKENS, **how):
    model = build(device, **how)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        for number in range(micro_batches):
            model.set_requires_gradient_sync(not hold or number == micro_batches - 1)
            ids = torch.zeros(tokens, dtype=torch.int64, device=device)
            nn.functional.cross_entropy(model(ids), ids).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def main(path, world_size, rank, *names):
    """Write the real peak of the cases that are named, in bytes."""
    from brimful.measure.allocations import collect, lifetimes, live_bytes

    dist.init_process_group("fake", store=FakeStore(), rank=int(rank), world_size=int(world_size))
    peaks = {}
    known = cases(int(world_size))
    for case in names:
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profiler:
            train("cpu", tokens=FEW_TOKENS, **known[case])
        gc.collect()
        events = collect(profiler.profiler.kineto_results.experimental_event_tree()).events
        peaks[case] = int(live_bytes(lifetimes(events), len(events.time_ns)).max())
    with open(path, "w") as file:  # noqa: PTH123 - a script of its own
        json.dump(peaks, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
