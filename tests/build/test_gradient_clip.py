"""The gradient norm is fp32 whatever the gradients are held in, and costs no copy of them."""

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from brimful.build.gradient_clip import clip_factor, clip_gradients, gradient_norm
from brimful.units import KIB

pytestmark = pytest.mark.torch

HALVES = [torch.bfloat16, torch.float16]


def parameters(dtype, *, sizes=((300, 301), (70_000,), (3,)), scale=0.01):
    torch.manual_seed(0)
    made = [nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes]
    for parameter in made:
        parameter.grad = (torch.randn(parameter.shape) * scale).to(dtype)
    return made


def exact_norm(made):
    return float(torch.stack([p.grad.double().pow(2).sum() for p in made]).sum().sqrt())


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_the_norm_is_that_of_the_gradients_to_fp32(dtype):
    made = parameters(dtype)
    norm = clip_gradients(made, 0.0)
    assert norm.dtype == torch.float32
    assert float(norm) == pytest.approx(exact_norm(made), rel=5e-6)


def test_torchs_norm_of_bf16_gradients_is_a_thousand_times_further_off():
    made = parameters(torch.bfloat16)
    theirs = torch.nn.utils.clip_grad_norm_(made, float("inf"))
    assert theirs.dtype == torch.bfloat16
    assert abs(float(theirs) / exact_norm(made) - 1) > 2e-3
    assert abs(float(gradient_norm(made)) / exact_norm(made) - 1) < 2e-6


def test_a_norm_that_fp16_cannot_hold_is_still_a_number():
    made = parameters(torch.float16, scale=3000.0)
    assert torch.isinf(torch.nn.utils.get_total_norm([p.grad for p in made]))
    assert float(gradient_norm(made)) == pytest.approx(exact_norm(made), rel=5e-6)


def test_fp32_gradients_are_clipped_by_torch_itself_to_the_bit():
    ours, theirs = parameters(torch.float32), parameters(torch.float32)
    norm = clip_gradients(ours, 0.5)
    assert torch.equal(norm, torch.nn.utils.clip_grad_norm_(theirs, 0.5))
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("bound", "expected"), [(0.5, 0.5), (1e3, None), (0.0, None)])
def test_16_bit_gradients_are_clipped_to_the_bound_or_left_alone(dtype, bound, expected):
    made = parameters(dtype)
    before = [p.grad.clone() for p in made]
    clip_gradients(made, bound)
    if expected is None:
        assert all(torch.equal(p.grad, b) for p, b in zip(made, before, strict=True))
    else:
        assert exact_norm(made) == pytest.approx(expected, rel=5e-3)


def test_gradients_of_two_types_have_one_norm():
    made = [*parameters(torch.float32), *parameters(torch.bfloat16)]
    made.append(nn.Parameter(torch.zeros(3)))  # one without a gradient
    expected = exact_norm(made[:-1])
    assert float(clip_gradients(made, 0.25)) == pytest.approx(expected, rel=1e-6)
    assert exact_norm(made[:-1]) == pytest.approx(0.25, rel=5e-3)


def test_the_norm_widens_a_piece_at_a_time():
    made = parameters(torch.bfloat16, sizes=((1000, 1000),))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        gradient_norm(made)
    live = peak = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    assert 0 < peak <= 300 * KIB


def test_the_factor_is_one_below_the_bound_and_without_a_bound():
    norm = torch.tensor(4.0)
    assert float(clip_factor(norm, 1.0)) == pytest.approx(0.25, rel=1e-5)
    assert float(clip_factor(norm, 8.0)) == 1.0
    assert float(clip_factor(norm, 0.0)) == 1.0
    assert float(clip_factor(torch.tensor(0.0), 1.0)) == 1.0


def test_no_gradients_have_a_norm_of_zero():
    assert float(gradient_norm([nn.Parameter(torch.ones(2))])) == 0.0
