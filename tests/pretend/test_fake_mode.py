"""What distinguishes two calls of an operation, to the memory of the fake mode."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as fake_mode_aside

from brimful.pretend import device
from brimful.pretend.fake_mode import Call, FakeMode
from brimful.pretend.tape import Tape

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


device.register()
X = torch.ops.aten
CALLS = {
    "new": (X.mm.default, lambda: (torch.empty(3, 4), torch.empty(4, 5))),
    "view": (X.transpose.int, lambda: (torch.empty(3, 4), 0, 1)),
    "view of a part": (X.slice.Tensor, lambda: (torch.empty(6, 4), 0, 2, 5)),
    "unsafe view": (X._unsafe_view.default, lambda: (torch.empty(6, 4), [3, 8])),
    "in place": (X.add_.Tensor, lambda: (torch.empty(3, 4), torch.empty(4))),
    "several": (X.native_layer_norm.default, lambda: (torch.empty(3, 4), [4], None, None, 1e-5)),
    "of another type": (X._to_copy.default, lambda: (torch.empty(3, 4),), {"dtype": torch.half}),
    "elsewhere": (X.neg.default, lambda: (torch.empty(3, 4, device="gpu:0"),)),
    "into one given": (X.copy_.default, lambda: (torch.empty(3, 4), torch.empty(1, 4))),
}


def seen(out, args):
    """What can be told of results: their form, and whose storage they have."""
    for x in out if isinstance(out, tuple) else (out,):
        shared = [
            place
            for place, arg in enumerate(args)
            if isinstance(arg, torch.Tensor)
            and arg.untyped_storage()._cdata == x.untyped_storage()._cdata
        ]
        yield x.shape, x.stride(), x.storage_offset(), x.dtype, x.device, x.requires_grad, shared
        yield x.untyped_storage().nbytes(), [x is arg for arg in args], sorted(vars(x))
        yield torch._C._dispatch_keys(x).raw_repr()


@pytest.mark.parametrize("name", CALLS)
def test_what_is_remembered_is_what_pytorch_makes(name):
    func, make, *named = CALLS[name]
    named = named[0] if named else {}
    with FakeTensorMode():
        args = make()
        theirs = list(seen(func(*args, **named), args))
    with FakeMode() as fake:
        func(*make(), **named)
        args = make()
        with fake_mode_aside():
            assert Call(func, args, named).remembered() is NotImplemented  # no mode of ours is on
        out = Call(func, args, named).remembered()
        assert out is not NotImplemented
        assert list(seen(out, args)) == theirs
        assert all(x.fake_mode is fake for x in (out if isinstance(out, tuple) else (out,)))


def test_nothing_is_remembered_of_what_hangs_on_values_or_asks_another_mode():
    with FakeMode() as fake:
        mask = torch.empty(4, dtype=torch.bool)
        with pytest.raises(Exception, match="nonzero"):
            X.nonzero.default(mask)
        assert Call(X.nonzero.default, (mask,), {}).remembered() is NotImplemented
        args = (torch.empty(3, 4), 0, 1)
        X.transpose.int(*args)
        assert fake.key_of(X.transpose.int, args, {}) is not None
        with CheckFirst() as other:
            X.transpose.int(*args)
            assert X.transpose.int in other.asked
            assert (
                Call(X.transpose.int, args, {}).remembered() is NotImplemented
            )  # it is to be asked


class CheckFirst(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.asked = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.asked.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", CALLS)
def test_what_a_call_costs_is_what_it_costs_when_it_is_remembered(name):
    """A tape asks once for each call that makes the same."""
    func, make, *named = CALLS[name]
    costs = []
    for _ in range(2):
        with FakeMode(), (tape := Tape(count_costs=True)):
            args = [x.to("gpu") if isinstance(x, torch.Tensor) else x for x in make()]
            before = tape.spot().cost
            func(*args, **(named[0] if named else {}))
            costs.append(tape.main.costs_since(before))
    first, second = ([each._replace(event=0) for each in some] for some in costs)
    assert first == second
