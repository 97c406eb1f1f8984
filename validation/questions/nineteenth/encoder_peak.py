"""For our CI: peak of one step of my encoder by batch and by number of FSDP shards, on an L4."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from brimful import pretend


def step(batch, shards):
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, norm_first=True, activation="gelu")
    model = nn.TransformerEncoder(layer, 24, enable_nested_tensor=False).to("cuda")
    if shards > 1:
        mesh = init_device_mesh("cuda", (shards,))
        for block in model.layers:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(torch.randn(batch, 512, 1024, device="cuda")).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


for shards in (1, 4):
    for batch in (4, 8, 16, 32):
        with pretend.gpu("l4", world_size=shards) as run:
            step(batch, shards)
        report = run.report()
        print(f"{shards} shards, batch {batch:>2}: {run.peak_allocated_bytes / 2**30:6.2f} GiB, fits: {report.fits}")
