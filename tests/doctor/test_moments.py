"""Second moments that vanish: counted as they are, and a fault where epsilon is too small."""

import pytest

pytestmark = pytest.mark.torch


def looked(dtype="float16", *, epsilon=1e-8, name="AdamW", scale=1e-4, **ways):
    """Step once with gradients of about ``scale``; returns what was seen, and the optimizer."""
    import torch
    from torch import nn

    from brimful.doctor.watcher import Watcher

    torch.manual_seed(0)
    model = nn.Linear(64, 64).to(getattr(torch, dtype))
    kinds = {"AdamW": {"eps": epsilon, **ways}, "SGD": {"momentum": 0.9}}
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-3, **kinds[name])
    watcher = Watcher(model, optimizer)
    with watcher.step(1):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter) * scale
        optimizer.step()
    return watcher.watched(), optimizer


def faults(watched):
    from brimful.doctor.findings import find_faults
    from brimful.doctor.seen import seen_in_loop

    return [finding for finding in find_faults(seen_in_loop(watched)) if finding.fault == "epsilon"]


def test_what_is_counted_is_in_the_optimizers_state():
    watched, optimizer = looked()
    assert [held.name for held in watched.moments] == ["weight", "bias"]
    for held, state in zip(watched.moments, optimizer.state.values(), strict=True):
        moved = state["exp_avg"] != 0
        assert held.num == int(moved.sum())
        assert held.num_vanished == int((moved & (state["exp_avg_sq"] == 0)).sum())
        assert (held.held, held.epsilon, held.step) == ("float16", 1e-8, 1)


def test_a_fault_is_told_once_with_the_worst_parameter_and_what_helps():
    watched, _ = looked()
    (finding,) = faults(watched)
    worst = max(watched.moments, key=lambda held: held.num_vanished / held.num)
    assert finding.name == worst.name
    assert "in 2 of 2 parameters" in finding.text
    assert "an epsilon of 0.0001 or fp32 moments" in finding.text


@pytest.mark.parametrize(
    "healthy",
    [
        {"epsilon": 1e-4},
        {"dtype": "bfloat16"},
        {"dtype": "float32"},
        {"scale": 1.0},
        {"name": "SGD"},
    ],
)
def test_where_epsilon_or_the_type_suffices_there_is_none(healthy):
    assert faults(looked(**healthy)[0]) == []


def test_the_epsilon_that_is_advised_bounds_updates():
    import torch

    # Of gradients whose squares vanish, in fp64 for what they should be.
    moved = {}
    for epsilon in (1e-8, 1e-4):
        _, optimizer = looked("float16", epsilon=epsilon, foreach=True)
        (parameter, _), *_ = optimizer.state.items()
        moved[epsilon] = parameter.detach().double()
    assert not torch.isfinite(moved[1e-8]).all()
    assert torch.isfinite(moved[1e-4]).all()
