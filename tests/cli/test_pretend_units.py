"""``brimful pretend`` of a script whose model is one unit of FSDP: run with its blocks too."""

import pytest

pytestmark = pytest.mark.torch

ROOT_ONLY = """
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.distributed.init_process_group("nccl")
mesh = init_device_mesh("cuda", (8,))
with torch.device("meta"):
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(16)))
fully_shard(model, mesh=mesh)
model.to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(3):
    model(torch.ones(4, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("budget", "said_so"),
    [
        (
            "500MiB",
            "would fit with fully_shard on each Linear (*) before that: 302.00 MiB, simulated",
        ),
        ("50MiB", "fully_shard on each Linear (*) before that: 302.00 MiB, simulated, which is"),
    ],
)
def test_what_its_blocks_as_units_would_take_is_simulated(tmp_path, brimful, budget, said_so):
    (tmp_path / "root.py").write_text(ROOT_ONLY)
    launch = ("torchrun", "--nproc_per_node", 8, tmp_path / "root.py")
    said = brimful("pretend", "--memory-budget", budget, "--", *launch)
    assert said.code == 1
    words = " ".join(said.out.split())
    assert "one FSDP unit holds 67.1M of 67.1M parameters: 512.25 MiB are gathered" in words
    assert said_so in words
    assert "no batch" not in words  # whole gradients are what a smaller unit has less of
    assert "running it with each Linear sharded on its own" in said.err
