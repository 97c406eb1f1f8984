"""What a training takes of a program that fails in its evaluation, beside one that has none."""

import contextlib
from pathlib import Path

import pytest
import torch
from torch import nn

from brimful import pretend
from brimful.show.pretend import pretend_summary
from brimful.show.sizes import combined_facts, largest_facts, mended_facts
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


class EndedError(Exception):
    pass


def ended(*_):
    raise EndedError


def rendered(  # noqa: PLR0913 - what a training may do
    *, num_pixels=32768, batch=256, num_steps=8, every=3, with_graphs=True, ends_in_backward=False
):
    """A training that renders one view between two of its steps, and holds it."""
    with pretend.gpu("t4") as run:
        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for step in range(num_steps):
            model(torch.randn(batch, 256, device="cuda")).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == every:
                with torch.set_grad_enabled(with_graphs):
                    view = model(torch.randn(num_pixels, 256, device="cuda"))  # noqa: F841
        if ends_in_backward:
            out = model[-1](model[:-1](torch.randn(batch, 256, device="cuda")))
            out.register_hook(ended)
            with contextlib.suppress(EndedError):
                out.mean().backward()
    return run


def facts_of(run, report):
    mended = run.mended(run.recording(), report.peak_event)
    without = mended_facts(report, ["x.py"], mended) if mended else ()
    summary = pretend_summary(report, ["x.py"], mended=without)
    return {fact.label: fact.text for fact in summary.facts}


@pytest.mark.parametrize("ends_in_backward", [False, True])
def test_one_view_between_steps_that_builds_graphs_is_no_step(ends_in_backward):
    run = rendered(ends_in_backward=ends_in_backward)
    room = 56 * MIB
    report = run.report(budget_bytes=room)
    assert report.is_between_steps
    assert report.before_evaluation_bytes <= room
    told = facts_of(run, report)
    assert "which fits" in told["training"]
    line = int(report.unused_graphs.called_at.rpartition(":")[2])
    assert "view = model(" in Path(__file__).read_text("utf-8").splitlines()[line - 1]
    assert "torch.no_grad() around it" in told["graphs"]
    assert "does not fit; fewer rows at once, too" in told["without"]


def test_of_a_view_between_steps_no_batch_is_told_by_proportion():
    run = rendered()
    report = run.report(budget_bytes=64 * MIB)
    program = ["x.py", "--batch", "256"]
    assert largest_facts(report, program, None, run.recording()) == ()
    assert combined_facts(report, program, run.recording()) == ()


def test_of_a_view_without_graphs_none_is_told_either():
    run = rendered(with_graphs=False)
    report = run.report(budget_bytes=56 * MIB)
    assert largest_facts(report, ["x.py", "--batch", "256"], None, run.recording()) == ()
    told = facts_of(run, report)
    assert "which fits" in told["training"]
    assert "fewer rows at once" in told["change"]
    assert "batch" not in told["change"]


def test_of_an_evaluation_of_as_many_rows_a_batch_is_told():
    run = rendered(with_graphs=False, num_pixels=4096, batch=4096)
    report = run.report(budget_bytes=int(run.peak_allocated_bytes * 0.9))
    assert largest_facts(report, ["x.py", "--batch", "4096"], None, run.recording())


@pytest.mark.parametrize("how", [{"num_pixels": 1, "batch": 32768}, {"num_steps": 4}], ids=str)
def test_a_step_is_none_between_steps_nor_is_what_may_be_one(how):
    run = rendered(**how)
    assert not run.report(budget_bytes=int(run.peak_allocated_bytes * 0.9)).is_between_steps


def test_a_graph_that_is_gone_through_and_kept_is_a_steps():
    with pretend.gpu("t4") as run:
        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for step in range(6):
            loss = model(torch.randn(4096, 256, device="cuda")).mean()
            loss.backward(retain_graph=step == 2)
            kept = loss if step == 2 else None  # noqa: F841 - which holds it
            optimizer.step()
            optimizer.zero_grad()
    report = run.report(budget_bytes=int(run.peak_allocated_bytes * 0.9))
    assert report.unused_graphs is None
    assert not report.is_between_steps
