"""What a training takes of a program that fails in its evaluation, beside one that has none."""

import pytest
import torch
from torch import nn

from brimful import pretend
from brimful.show.pretend import pretend_summary
from brimful.units import MIB

pytestmark = pytest.mark.torch


def ran(*, num_steps=3, batch=256, evaluated=2048, with_graphs=True, num_forwards=4):
    with pretend.gpu("t4") as run:
        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(num_steps):
            model(torch.randn(batch, 256, device="cuda")).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        x = torch.randn(1, 256, device="cuda").expand(evaluated, 256)
        with torch.set_grad_enabled(with_graphs):
            kept = [model(x) for _ in range(num_forwards)]
        del kept
    return run


@pytest.mark.parametrize("how", [{}, {"evaluated": 32768, "with_graphs": False}], ids=str)
def test_what_the_training_takes_is_told_where_an_evaluation_fails(how):
    alone = ran(evaluated=1).report().reserved.simulated_peak_reserved_bytes
    report = ran(**how).report(budget_bytes=alone + 20 * MIB)
    assert report.before_evaluation_bytes == pytest.approx(alone, abs=2 * MIB)
    facts = {fact.label: fact.text for fact in pretend_summary(report, ["x.py"]).facts}
    assert facts["training"].endswith("before the evaluation, which fits")


@pytest.mark.parametrize(
    "how", [{"num_steps": 1}, {"batch": 32768, "evaluated": 1}, {"num_forwards": 1}], ids=str
)
def test_nothing_is_told_where_it_is_no_evaluation_that_surely_fails(how):
    run = ran(**how)
    report = run.report(budget_bytes=int(run.peak_allocated_bytes * 0.9))
    assert report.at_capacity.failure is not None
    assert report.before_evaluation_bytes is None


def test_nothing_is_told_of_what_fits():
    assert ran().report().before_evaluation_bytes is None
