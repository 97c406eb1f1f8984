"""What distinguishes two calls of an operation, to the memory of the fake mode."""

import pytest
import torch

from brimful.pretend.fake_mode import FakeMode

pytestmark = pytest.mark.torch
ADD = torch.ops.aten.add.Tensor


@pytest.fixture
def mode():
    with FakeMode() as found:
        yield found


def key(mode, *args, **kwargs):
    from torch._subclasses.fake_tensor import _CacheKeyState

    return mode._cache_key(_CacheKeyState(None), ADD, args, kwargs)


def test_alike_calls_have_one_key(mode):
    one, other = (key(mode, torch.empty(3, 4), [1, 2.0], alpha=2) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.parametrize(
    "other",
    [
        lambda: torch.empty(4, 3),
        lambda: torch.empty(4, 3).t(),
        lambda: torch.empty(3, 4, dtype=torch.float16),
        lambda: torch.empty(3, 4, requires_grad=True),
        lambda: torch.empty(4, 4)[:3],
        lambda: torch.empty(4, 4)[1:],
        lambda: torch.empty(3, 4, dtype=torch.complex64).conj(),
        lambda: 1,
        lambda: 1.0,
        lambda: True,
        lambda: [1],
        lambda: (1,),
        lambda: [1.0],
        lambda: None,
    ],
)
def test_calls_that_differ_have_others(mode, other):
    every = [torch.empty(3, 4), torch.empty(3, 4, dtype=torch.complex64), 2, 2.0, [2], (2,)]
    given = other()
    assert key(mode, given) == key(mode, other())
    assert all(key(mode, given) != key(mode, each) for each in every)
    kinds = [1, 1.0, True, [1], (1,), [1.0]]
    assert sum(key(mode, given) == key(mode, kind) for kind in kinds) == (
        not isinstance(given, torch.Tensor) and given is not None
    )


def test_what_is_unusual_is_left_to_pytorch(mode):
    assert mode._plain_key([torch.empty(2), 1]) is not None
    assert mode._plain_key([print]) is None
    assert mode._plain_key([{"a": 1}]) is None
    with FakeMode() as other:
        theirs = torch.empty(2)
    assert other._plain_key([theirs]) is not None
    assert mode._plain_key([theirs]) is None
