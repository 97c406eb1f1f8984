"""Gradients that no optimizer uses are told: a teacher's without no_grad, an unfrozen body's."""

import pytest
import torch
from torch import nn

from brimful import pretend
from brimful.show.pretend import pretend_summary

pytestmark = pytest.mark.torch


class Teacher(nn.Linear):
    pass


def distilled(*, frozen=False, both=False):
    with pretend.gpu("t4") as run:
        teacher, student = Teacher(1024, 512).cuda(), nn.Linear(1024, 512).cuda()
        teacher.requires_grad_(not frozen)
        models = [teacher, student] if both else [student]
        optimizers = [torch.optim.SGD(model.parameters()) for model in models]
        x = torch.randn(64, 1024, device="cuda")
        for _ in range(2):
            (teacher(x) - student(x)).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    return run.report()


def test_a_teacher_that_gets_gradients_is_named():
    report = distilled()
    (idle,) = report.idle_gradients
    assert (idle.model, idle.num_parameters) == ("Teacher", 1025 * 512)
    assert idle.num_bytes == 1025 * 512 * 4
    told = {fact.label: fact.text for fact in pretend_summary(report, ["x.py"]).facts}
    assert "parameters of Teacher that no optimizer has: torch.no_grad() there" in told["idle"]


@pytest.mark.parametrize("how", [{"frozen": True}, {"both": True}], ids=str)
def test_what_is_frozen_or_updated_by_another_optimizer_is_none(how):
    assert distilled(**how).idle_gradients == ()


def test_where_an_engine_updates_copies_nothing_is_said():
    with pretend.gpu("t4") as run:
        model = nn.Linear(64, 64).cuda()
        copies = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer = torch.optim.SGD(copies)
        for _ in range(2):
            model(torch.randn(8, 64, device="cuda")).mean().backward()
            for copy, parameter in zip(copies, model.parameters(), strict=True):
                copy.grad = parameter.grad
            optimizer.step()
    assert run.report().idle_gradients == ()


def test_an_optimizer_that_is_gone_holds_no_step_back():
    with pretend.gpu("t4") as run:
        model = nn.Linear(64, 64).cuda()
        for num_updates in (1, 3):  # of a warm-up's own optimizer, then of the one that trains
            optimizer = torch.optim.SGD(model.parameters())
            for _ in range(num_updates):
                model(torch.randn(8, 64, device="cuda")).mean().backward()
                optimizer.step()
            told = run.num_steps
    assert told == 3
