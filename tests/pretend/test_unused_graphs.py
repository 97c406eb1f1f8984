"""An evaluation that keeps graphs is told; a step's own forward passes are not."""

from pathlib import Path

import pytest
import torch
from torch import nn

from brimful import pretend
from brimful.show.pretend import pretend_summary

pytestmark = pytest.mark.torch


def deep_model(depth=8):
    blocks = (nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(depth))
    return nn.Sequential(*blocks).cuda()


def trained(*, evaluates, with_graphs=True, num_towers=1):
    with pretend.gpu("t4") as run:
        model = deep_model()
        optimizer = torch.optim.SGD(model.parameters())
        x = torch.randn(4096, 256, device="cuda")
        for _ in range(3):
            loss = sum(model(x).mean() for _ in range(num_towers))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if evaluates:
                with torch.set_grad_enabled(with_graphs):
                    total = sum(model(x).mean() for _ in range(5))  # noqa: F841 - which holds them
    return run.report()


def test_forward_passes_that_no_backward_follows_are_told():
    report = trained(evaluates=True)
    # Those of the evaluation before are held until this one's sum has their name.
    assert report.unused_graphs.num_forwards == 10
    saved = sum(item.num_bytes for item in report.items if item.name == "saved activations")
    assert report.unused_graphs.num_bytes == pytest.approx(saved, rel=0.05)
    told = " ".join(fact.text for fact in pretend_summary(report, ["x.py"]).facts)
    assert "10 forward passes keep for a backward pass that does not come" in told


@pytest.mark.parametrize(
    "how",
    [
        {"evaluates": False},
        {"evaluates": True, "with_graphs": False},
        {"evaluates": False, "num_towers": 3},
    ],
    ids=str,
)
def test_what_a_backward_uses_is_not(how):
    assert trained(**how).unused_graphs is None


def towers(x, models, _kept):
    """Several losses, each with a backward pass of its own."""
    for loss in [model(x).mean() for model in models]:
        loss.backward()


def in_flight(x, models, _kept):
    """One forward, one backward, with four micro-batches between, as a pipeline's first stage."""
    waiting = []
    for _ in range(8):
        waiting.append(models[0](x).mean())
        if len(waiting) == len(models):
            waiting.pop(0).backward()
    for loss in waiting:
        loss.backward()


def looked_at(x, models, _kept):
    """The gradients of each loss first, then those of all."""
    losses = [model(x).mean() for model in models]
    for loss, model in zip(losses, models, strict=True):
        torch.autograd.grad(loss, model.parameters(), retain_graph=True)
    sum(losses).backward()


def kept_outputs(x, models, kept):
    """A list that grows: what is held is outputs, whose graphs were gone through."""
    y = models[0](x)
    kept.append(y)
    y.mean().backward()


@pytest.mark.parametrize("step", [towers, in_flight, looked_at, kept_outputs])
def test_what_a_later_backward_goes_through_is_not(step):
    with pretend.gpu("t4") as run:
        models, kept = [deep_model(depth=3) for _ in range(4)], []
        for _ in range(12):
            step(torch.randn(4096, 256, device="cuda"), models, kept)
            for parameter in (p for model in models for p in model.parameters()):
                parameter.grad = None
    assert run.report().unused_graphs is None


def test_where_the_script_calls_what_is_kept_is_told():
    report = trained(evaluates=True)
    file, _, number = report.unused_graphs.called_at.rpartition(":")
    assert file == __file__
    line = Path(__file__).read_text("utf-8").splitlines()[int(number) - 1]
    assert "total = sum(model(x)" in line


def acted(body, actor, x):
    h = body(x)
    return actor(h)


def test_a_pass_that_calls_several_modules_is_one():
    with pretend.gpu("t4") as run:
        body, actor = deep_model(), nn.Linear(256, 64).cuda()
        optimizer = torch.optim.SGD([*body.parameters(), *actor.parameters()])
        for _ in range(3):
            kept = [acted(body, actor, torch.randn(4096, 256, device="cuda")) for _ in range(5)]
            acted(body, actor, torch.randn(4096, 256, device="cuda")).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            del kept
    assert run.report().unused_graphs.num_forwards == 5
