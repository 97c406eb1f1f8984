"""What processes tell each other is counted once, whatever passes it on."""

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from brimful.measure.collectives import _added_up, watched_collectives

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")]


class PassesOn(TorchDispatchMode):
    """Dispatches again what it is asked, as selective checkpointing does."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Event:
    """As the profiler tells it: a message of eight floats."""

    def __init__(self, name, start, duration):
        self.name, self.start_ns, self.duration_ns = (
            (lambda: name),
            (lambda: start),
            (lambda: duration),
        )
        self.shapes, self.dtypes = (lambda: [[8]]), (lambda: ["float"])
        self.start_thread_id = lambda: 1


def test_messages_that_are_under_way_at_once_are_counted_each():
    told = _added_up([Event("gloo:send", 0, 100), Event("gloo:send", 50, 100)])
    assert [(each.kind, each.num_calls, each.num_bytes) for each in told] == [("send", 2, 64)]


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
