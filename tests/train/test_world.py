"""Groups of processes: every one waits as long as was asked for."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from brimful.train.world import Place, joined

pytestmark = pytest.mark.torch


def patience_of(group):
    return group._get_backend(torch.device("cpu")).options._timeout


def test_groups_and_meshes_that_are_made_later_wait_as_long_as_that_of_all(monkeypatch):
    before = dist.distributed_c10d._get_default_timeout("gloo")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    with joined(Place(0, 0, 1), "cpu", timeout_s=7):
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp_shard", "tp"))
        groups = [dist.group.WORLD, dist.new_group([0]), mesh["tp"].get_group()]
        assert [patience_of(group) for group in groups] == [timedelta(seconds=7)] * 3
    assert dist.distributed_c10d._get_default_timeout("gloo") == before != timedelta(seconds=7)
