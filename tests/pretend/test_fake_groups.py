"""What groups of a pretend world are asked for beside collectives of tensors."""

import os
import warnings

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from brimful import pretend
from brimful.errors import InputError

pytestmark = pytest.mark.torch

WORLD, RANK = 4, 1


@pytest.fixture
def run():
    with pretend.gpu(world_size=WORLD, rank=RANK) as run:
        dist.init_process_group("nccl")
        torch.zeros(1, device="cuda")
        yield run


def test_groups_of_any_backend(run):
    for backend in ("gloo", "cpu:gloo,cuda:nccl", None):
        group = dist.new_group([0, RANK], backend=backend)
        assert dist.get_world_size(group) == 2
        dist.all_reduce(torch.ones(2, device="cuda"), group=group)
        dist.barrier(group)
    assert dist.get_rank(dist.new_group([RANK], None, "gloo")) == 0
    assert run.world.size == WORLD


def test_objects_of_peers_are_what_this_process_has(run):
    gathered = [None] * WORLD
    dist.all_gather_object(gathered, {"rank": RANK})
    assert gathered == [{"rank": RANK}] * WORLD
    given, got = ["mine"], [None]
    dist.broadcast_object_list(given, src=RANK)
    assert given == ["mine"]
    dist.scatter_object_list(got, list("abcd"), src=RANK)
    assert got == ["b"]
    at_first = [None] * WORLD
    dist.gather_object("x", at_first, dst=RANK)
    assert at_first == ["x"] * WORLD
    assert any("Python objects" in line for line in run.tape.assumptions)


@pytest.mark.usefixtures("run")
def test_known_integers_are_what_every_peer_has():
    own = torch.arange(WORLD, device="cuda")
    whole = torch.empty(WORLD * WORLD, dtype=own.dtype, device="cuda")
    got = torch.empty_like(own)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        dist.all_gather_into_tensor(whole, own)
        dist.all_to_all_single(got, own)
    assert whole.tolist() == [0, 1, 2, 3] * WORLD
    assert got.tolist() == [RANK] * WORLD
    several = [torch.empty_like(own) for _ in range(WORLD)]
    dist.all_gather(several, own)
    assert [x.tolist() for x in several] == [[0, 1, 2, 3]] * WORLD


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("operation", "expected"), [("SUM", 12), ("MAX", 3), ("MIN", 3), ("PRODUCT", 1)]
)
def test_known_integers_are_added_up_once_for_each_peer(operation, expected):
    own = torch.tensor([3], device="cuda")
    dist.all_reduce(own, op=getattr(dist.ReduceOp, operation))
    assert own.item() == expected  # 1: what an unknown integer is answered


@pytest.mark.usefixtures("run")
def test_what_another_process_broadcasts_is_unknown():
    mine, other = torch.tensor([7], device="cuda"), torch.tensor([7], device="cuda")
    dist.broadcast(mine, RANK)
    dist.broadcast(other, 0)
    assert mine.item() == 7
    assert other.item() == 1  # what an unknown integer is answered


def test_collectives_of_several_tensors_at_once(run):
    small, large = torch.ones(8, device="cuda"), torch.ones(8 * WORLD, device="cuda")
    calls = (
        lambda: dist.all_reduce(small),
        lambda: dist.all_gather_into_tensor(large, small),
        lambda: dist.reduce_scatter_tensor(small, large),
    )
    for call in calls:
        before = run.tape.num_allocations()
        manager = dist.distributed_c10d._coalescing_manager(async_ops=True)
        with warnings.catch_warnings(), manager as work:
            warnings.simplefilter("ignore", FutureWarning)
            call()
            call()
        work.wait()
        assert run.tape.num_allocations() == before


def test_a_world_of_one_is_launched_and_no_world_is_not():
    before = os.environ.get("RANK")
    for size, rank in ((None, before), (1, "0")):
        with pretend.gpu(world_size=size) as run:
            torch.ones(1, device="cuda")
            assert os.environ.get("RANK") == rank
            assert dist.is_initialized() == (size is not None)
        assert run.peak_allocated_bytes == 4
    with pytest.raises(InputError, match="rank 1 is not in a world of 1"):
        pretend.gpu(rank=1)


def test_a_mesh_is_made_of_groups_and_known_ranks(run):
    """``from_group`` makes a tensor of the ranks where the program is, inside of the mode."""
    groups = [dist.new_group([0, 1]), dist.new_group([1, 3])]
    mesh = DeviceMesh.from_group(
        groups, device_type="cuda", mesh=[[0, 1], [2, 3]], mesh_dim_names=("inner", "outer")
    )
    assert run.world.rank == RANK
    assert [mesh.size(axis) for axis in (0, 1)] == [2, 2]
    assert mesh.get_coordinate() == (0, 1)
