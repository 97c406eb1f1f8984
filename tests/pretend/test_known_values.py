"""Known integers: what is known, and above all what is no longer."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from brimful.pretend import device
from brimful.pretend.compiled_code import Kernel
from brimful.pretend.known_values import MOST_ELEMENTS, knowing

pytestmark = pytest.mark.torch


@pytest.fixture
def known():
    device.register()
    with FakeTensorMode(allow_non_fake_inputs=True), knowing() as known:
        yield known


def of(known, x):
    value = known.value(x)
    if value is None:
        return None
    with torch._C._DisableTorchDispatch():
        return value.tolist()


def test_what_is_made_of_known_integers_is_known(known):
    x = torch.arange(6).view(2, 3).to("gpu:0")
    assert of(known, x) == [[0, 1, 2], [3, 4, 5]]
    assert of(known, torch.cat([x, x + 1])[:, 1]) == [1, 4, 2, 5]
    assert of(known, (x > 2).sum()) == 3
    assert of(known, torch.full((2,), 7)) == [7, 7]
    assert of(known, x.cpu().unique()) == [0, 1, 2, 3, 4, 5]


def test_what_is_made_of_floats_is_not(known):
    x = torch.rand(3)
    assert of(known, x) is None
    assert of(known, x.argmax()) is None
    assert of(known, x > 0) is None


def test_floats_that_are_all_alike_are_known_until_they_are_written(known):
    x = torch.zeros((2, 4), device="gpu:0")
    assert of(
        known, x.int().scatter(1, torch.tensor([[1], [3]]).to(x.device), 1).bool().sum(0)
    ) == [0, 1, 0, 1]
    assert of(known, torch.full_like(x, 2.0).int()[0]) == [2, 2, 2, 2]
    assert of(known, (x + 1).int()) is None
    x.normal_()
    assert of(known, x.int()) is None
    assert of(known, torch.ones(MOST_ELEMENTS + 1).int()) is None


def test_floats_that_are_all_alike_are_so_where_they_are_scaled(known):
    x = torch.ones(3, device="gpu:0")
    assert of(known, 0 * x == 0) == [1, 1, 1]
    assert of(known, x / 2 == 0.5) == [1, 1, 1]
    assert of(known, torch.rand(3, device="gpu:0") * 0 == 0) is None


def test_numbers_that_nobody_knows_are_finite(known):
    x = torch.rand((2, 3), device="gpu:0")
    assert of(known, torch.isfinite(x)) == [[1, 1, 1]] * 2
    assert not of(known, torch.isnan(x.amax()).logical_or(torch.isinf(x.amin())))
    assert not of(known, torch.isinf(torch.empty(MOST_ELEMENTS + 1)).any())
    assert of(known, torch.eq(x, x).all())
    assert of(known, x == 0.5) is None
    inf = torch.full((2,), float("inf"))
    assert of(known, inf.isinf()) == [True, True]


def test_places_that_are_written_into_floats_that_are_alike_are_those_alone(known):
    """One number stands for such floats; writing into it would write all."""
    x = torch.zeros((3, 4), device="gpu:0")
    rows = torch.arange(3, device=x.device).unsqueeze(1)
    x.index_put_(
        (rows, torch.tensor([[1], [3], [0]]).to(x.device)), torch.ones((3, 1), device=x.device)
    )
    assert of(known, x.bool().sum(0)) == [1, 1, 0, 1]
    x.add_(torch.rand_like(x))
    assert of(known, x.bool()) is None


def test_a_compiled_kernel_writes_into_what_it_does_not_only_read(known):
    read, written, both = (torch.arange(3, device="gpu:0") for _ in range(3))
    source = "@triton.jit\ndef triton_poi_0(in_ptr0, in_out_ptr0, out_ptr1, xnumel, XBLOCK):\n"
    Kernel(known, source).run(read, both, written, 3, stream=0)
    assert [of(known, x) for x in (read, both, written)] == [[0, 1, 2], None, None]
    cpp = 'extern "C"  void kernel(const int64_t* in_ptr0,\n int64_t* out_ptr0)\n{'
    other = torch.arange(2, device="gpu:0")
    Kernel(known, cpp).run(read, other)
    assert [of(known, x) for x in (read, other)] == [[0, 1, 2], None]
    Kernel(known, "nothing that is known").run(read)
    assert of(known, read) is None


def test_what_is_chosen_of_unknown_scores_is_spread_evenly(known):
    scores = torch.randn((4, 8), device="gpu:0")
    _, places = torch.topk(scores, k=2, dim=1)
    assert of(known, places) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert of(known, torch.topk(torch.arange(4), 1).indices) == [3]
    assert of(known, torch.topk(scores, 2, dim=0).indices) is None


@pytest.mark.usefixtures("known")
def test_a_known_mask_selects_as_many_as_it_has():
    mask = torch.tensor([True, False, True]).to("gpu:0")
    assert torch.randn((2, 3), device="gpu:0").masked_select(mask).shape == (4,)


def test_large_tensors_are_not_kept(known):
    assert of(known, torch.zeros(MOST_ELEMENTS + 1, dtype=torch.long)) is None
    assert of(known, torch.zeros(MOST_ELEMENTS, dtype=torch.long).sum()) == 0


def test_writing_into_a_view_changes_the_whole(known):
    x = torch.zeros(4, dtype=torch.long)
    x[1:3].fill_(5)
    x[0] += 2
    assert of(known, x) == [2, 5, 5, 0]


def test_writing_something_unknown_spoils_every_view_and_nothing_else(known):
    x, other = torch.zeros(4, dtype=torch.long), torch.ones(4, dtype=torch.long)
    view, copy = x[2:], x.clone()
    view.copy_(torch.randn(2))
    assert of(known, x) is None
    assert of(known, view) is None
    assert of(known, x + other) is None
    assert of(known, copy) == [0, 0, 0, 0]
    assert of(known, other) == [1, 1, 1, 1]


def test_what_the_host_cannot_write_is_no_longer_known(known):
    x = torch.zeros(4, dtype=torch.long)
    x.scatter_(0, torch.tensor([1, 9]), 1)  # beyond its end: found out by values alone
    assert of(known, x) is None


def test_draws_are_real(known):
    generator = torch.Generator().manual_seed(3)
    drawn = [of(known, torch.randperm(50, generator=generator)) for _ in range(2)]
    assert sorted(drawn[0]) == sorted(drawn[1]) == list(range(50))
    assert drawn[0] != drawn[1]


def test_a_mask_in_place_of_positions(known):
    x = torch.randn(2, 3, 4, device="gpu:0")
    mask = torch.tensor([[True, False, True], [False, False, True]]).to("gpu:0")
    assert x[mask].shape == (3, 4)
    assert x[mask].device == x.device
    assert of(known, mask) is not None
    assert of(known, x[mask]) is None


def test_nothing_of_it_is_left():
    from torch import _subclasses

    before = _subclasses.FakeTensor, _subclasses.FakeTensor.tolist
    with FakeTensorMode(), knowing():
        assert not isinstance(torch.ones(2, dtype=torch.long), _subclasses.FakeTensor)
        assert isinstance(torch.ones(2), _subclasses.FakeTensor)
    assert (_subclasses.FakeTensor, _subclasses.FakeTensor.tolist) == before


def test_what_one_of_two_decides_is_known(known):
    unknown, yes = torch.rand(3) > 0, torch.ones(3, dtype=torch.bool)
    numbers = unknown.long()
    assert of(known, unknown | yes) == [True, True, True]
    assert of(known, torch.logical_and(~yes, unknown)) == [False, False, False]
    assert of(known, numbers & ~yes) == [0, 0, 0]
    assert of(known, unknown & yes) is None
    assert of(known, numbers | 1) is None
    assert of(known, numbers | numbers.new_ones(3)) is None


def test_a_mask_that_is_drawn_is_known(known):
    probabilities = torch.full((2, 3), 0.5).masked_fill_(torch.tensor([True, False, True]), 1.0)
    mask = torch.bernoulli(probabilities).bool()
    assert [row[::2] for row in of(known, mask)] == [[True, True], [True, True]]
    words = torch.zeros(2, 3, dtype=torch.long)
    words[mask] = torch.ones(2, 3, dtype=torch.long)[mask]
    assert of(known, words == 1) == of(known, mask)
    assert of(known, torch.bernoulli(torch.rand(3)).bool()) is None
