"""What processes tell each other is counted once, whatever passes it on."""

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from brimful.measure.collectives import watched_collectives

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")]


class PassesOn(TorchDispatchMode):
    """Dispatches again what it is asked, as selective checkpointing does."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_what_a_dispatch_mode_passes_on_is_counted_once(tmp_path):
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(tmp_path / "s"), 1), rank=0, world_size=1
    )
    try:
        whole, part = torch.ones(4, 4), torch.empty(4, 4)
        with watched_collectives() as watched:
            dist.reduce_scatter_tensor(part, whole)
            with PassesOn():
                dist.reduce_scatter_tensor(part, whole)
                dist.all_gather_into_tensor(part, whole)
    finally:
        dist.destroy_process_group()
    assert {each.kind: each.num_calls for each in watched.collectives} == {
        "all-gather": 1, "reduce-scatter": 2,
    }  # fmt: skip
