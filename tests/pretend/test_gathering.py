"""What FSDP2 and DDP allocate is told by name, where PyTorch has the functions that make it."""

import pytest
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param, _fsdp_param_group

from brimful.pretend import fake_world
from brimful.pretend.gathering import named_buffers

pytestmark = pytest.mark.torch

PLACES = (
    (_fsdp_collectives, "_get_param_all_gather_inputs"),
    (_fsdp_collectives.DefaultAllGather, "__call__"),
    (_fsdp_collectives.DefaultReduceScatter, "__call__"),
    (_fsdp_param.FSDPParam, "init_all_gather_outputs"),
    (_fsdp_param.FSDPParam, "alloc_all_gather_outputs"),
    (_fsdp_param_group.FSDPParamGroup, "post_backward"),
    (fake_world, "_reduced"),
)


class Nobody:
    """Takes tags and forgets them."""

    def tag(self, tensors, item):
        """Do nothing."""


def functions():
    return [vars(owner).get(name) for owner, name in PLACES]


def test_every_function_is_there_wrapped_and_put_back():
    before = functions()
    assert None not in before
    with named_buffers(Nobody()):
        inside = functions()
        assert all(a is not b for a, b in zip(before, inside, strict=True))
        assert [f.__wrapped__ for f in inside] == before
    assert functions() == before


@pytest.mark.parametrize("place", range(len(PLACES)))
def test_a_function_that_a_version_has_not_is_passed_over(place, monkeypatch):
    owner, name = PLACES[place]
    monkeypatch.delattr(owner, name)
    with named_buffers(Nobody()):
        assert name not in vars(owner)
    assert name not in vars(owner)


def test_a_class_that_a_version_has_not_is_passed_over(monkeypatch):
    monkeypatch.delattr(_fsdp_collectives, "DefaultAllGather")
    monkeypatch.delattr(_fsdp_collectives, "DefaultReduceScatter")
    with named_buffers(Nobody()):
        assert not hasattr(_fsdp_collectives, "DefaultAllGather")
