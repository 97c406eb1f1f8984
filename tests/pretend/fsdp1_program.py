"""Programs with FSDP1 that run for real on a CPU and on the pretend GPU.

As a script: runs cases as one rank of a world and writes the real peaks, by the profiler's
allocation events, with no tape near it. Its process group is gloo's, or one that moves no data
where everything else is real: gloo's own threads let go of a collective's tensors some time after
it, so that a peak may come out higher by a unit or two.
"""

import gc
import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp import ShardingStrategy as Sharding
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

WIDTH, DEPTH, TOKENS, VOCABULARY, RANK = 256, 4, 768, 2048, 8
WORLD_SIZE = 2
LOW = torch.bfloat16
CASES = {
    "flat": {},
    "orig": {"use_orig_params": True},
    "grad-op": {"sharding_strategy": Sharding.SHARD_GRAD_OP},
    "no-shard": {"sharding_strategy": Sharding.NO_SHARD},
    "mixed": {"mixed_precision": MixedPrecision(param_dtype=LOW, reduce_dtype=torch.float32)},
    "mixed-orig": {
        "mixed_precision": MixedPrecision(param_dtype=LOW, reduce_dtype=LOW),
        "use_orig_params": True,
    },
    "lora": {"lora": True, "use_orig_params": True, "autocast": True},
    "lora-mixed": {
        "lora": True, "use_orig_params": True, "autocast": True,
        "mixed_precision": MixedPrecision(param_dtype=LOW, reduce_dtype=LOW, buffer_dtype=LOW),
    },
    "checkpointed": {"checkpointed": True},
    "re-entrant": {"lora": True, "use_orig_params": True, "checkpointed": True, "reentrant": True},
    "accumulated": {"micro_batches": 3},
    "held": {"micro_batches": 3, "hold": True},
    "clipped": {"clip": True},
}  # fmt: skip


class Linear(nn.Module):
    """A linear layer, which with an adapter does not train."""

    def __init__(self, inputs, outputs, *, lora):
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False)
        self.lora = lora
        if lora:
            self.base.weight.requires_grad_(False)
            self.down = nn.Linear(inputs, RANK, bias=False)
            self.up = nn.Linear(RANK, outputs, bias=False)

    def forward(self, x):
        out = self.base(x)
        return out + self.up(self.down(x)) if self.lora else out


class Block(nn.Module):
    def __init__(self, *, lora):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = Linear(WIDTH, 4 * WIDTH, lora=lora)
        self.down = Linear(4 * WIDTH, WIDTH, lora=lora)
        self.norm.requires_grad_(not lora)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, *, lora, checkpointed, reentrant):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block(lora=lora) for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.embed.requires_grad_(not lora)
        self.head.requires_grad_(not lora)
        self.checkpointed, self.reentrant = checkpointed, reentrant

    def forward(self, ids):
        x = self.embed(ids)
        if self.reentrant:
            x.requires_grad_()
        for layer in self.layers:
            if self.checkpointed:
                x = checkpoint(layer, x, use_reentrant=self.reentrant)
            else:
                x = layer(x)
        return self.head(x)


def train(  # noqa: PLR0913 - what the cases differ in
    device, *, lora=False, autocast=False, checkpointed=False, reentrant=False,
    micro_batches=1, hold=False, clip=False, **how,
):  # fmt: skip
    """Take two steps; ``how`` is FSDP's."""
    model = Model(lora=lora, checkpointed=checkpointed, reentrant=reentrant)
    model = FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.device(device),
        **how,
    )
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    for _ in range(2):
        for number in range(micro_batches):
            waits = hold and number < micro_batches - 1
            with model.no_sync() if waits else torch.enable_grad():
                ids = torch.zeros(TOKENS, dtype=torch.int64, device=device)
                with torch.autocast(torch.device(device).type, LOW, enabled=autocast):
                    logits = model(ids)
                nn.functional.cross_entropy(logits.float(), ids).backward()
        if clip:
            model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model


def main(backend, path, *names):
    """Write the real peak of the cases that are named, in bytes."""
    from brimful.measure.allocations import collect, lifetimes, live_bytes

    if backend == "gloo":
        dist.init_process_group(backend)
    else:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD_SIZE)
    peaks = {}
    for case in names:
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
            model = train("cpu", **CASES[case])
        del model
        gc.collect()
        events = collect(profiler.profiler.kineto_results.experimental_event_tree()).events
        peaks[case] = int(live_bytes(lifetimes(events), len(events.time_ns)).max())
        dist.barrier()
    if not dist.get_rank():
        with open(path, "w") as file:  # noqa: PTH123 - a script of its own
            json.dump(peaks, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
