"""Which part of a tensor a process holds, as torch says it of shards of every shape."""

from itertools import product

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from brimful import pretend
from brimful.build.own import region_of

pytestmark = pytest.mark.torch
SHAPES = ((1, 5), (7, 6), (12, 24), (3, 4), (9, 2))
PLACEMENTS = tuple(product((Replicate(), Shard(0), Shard(1)), repeat=2))


@pytest.mark.parametrize("rank", range(6))
def test_a_region_is_where_torch_says_it_is(rank):
    with pretend.gpu(world_size=6, rank=rank, imitate="cpu", says_cuda=False):
        mesh = init_device_mesh("gpu", (3, 2))
        for shape, placements in product(map(torch.Size, SHAPES), PLACEMENTS):
            held, begins = compute_local_shape_and_global_offset(shape, mesh, placements)
            meta = TensorMeta(shape, (shape[1], 1), torch.float32)
            spec = DTensorSpec(mesh, placements, tensor_meta=meta)
            tensor = DTensor(torch.empty(held, device="gpu:0"), spec, requires_grad=False)
            expected = zip(begins, held, strict=True)
            assert region_of(tensor) == tuple(slice(at, at + num) for at, num in expected)
