"""What is left of a program whose fault is mended, beside the program without the fault."""

import numpy as np
import pytest
import torch
from torch import nn

from brimful import pretend
from brimful.pretend.remedies import freed_sooner
from brimful.show.pretend import pretend_summary
from brimful.show.sizes import mended_facts
from brimful.units import MIB

pytestmark = pytest.mark.torch


def deep_model(width=256, depth=6):
    blocks = (nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth))
    return nn.Sequential(*blocks).cuda()


def evaluated(*, with_graphs, batch=4096):
    with pretend.gpu("t4") as run:
        model = deep_model()
        optimizer = torch.optim.SGD(model.parameters())
        x = torch.randn(batch, 256, device="cuda")
        for _ in range(3):
            model(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.set_grad_enabled(with_graphs):
                total = sum(model(x).mean() for _ in range(20))
            del total
    return run


def distilled(*, with_graphs, batch=8192, to_words=0):
    with pretend.gpu("t4") as run:
        teacher, student = deep_model(depth=4), deep_model(depth=10)
        if to_words:
            teacher.append(nn.Linear(256, to_words).cuda())
            student.append(nn.Linear(256, to_words).cuda())
        optimizer = torch.optim.SGD(student.parameters())
        for _ in range(3):
            x = torch.randn(batch, 256, device="cuda")
            with torch.set_grad_enabled(with_graphs):
                told = teacher(x)
            out = student(x)
            loss = (told - out).square().mean()
            if to_words:
                loss = nn.functional.kl_div(out.log_softmax(-1), told.softmax(-1), reduction="sum")
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return run


@pytest.mark.parametrize("program", [evaluated, distilled])
def test_what_is_left_is_what_the_mended_program_takes(program):
    mended = program(with_graphs=False).report().reserved.simulated_peak_reserved_bytes
    report = program(with_graphs=True).report(budget_bytes=mended + 8 * MIB)
    assert report.at_capacity.failure is not None
    assert report.without.fits
    assert report.without.most_bytes == pytest.approx(mended, rel=0.15)
    assert report.without.least_bytes <= mended


def test_a_loss_whose_backward_begins_before_the_teachers_is_no_part_of_the_least():
    how = {"batch": 512, "to_words": 8192}
    run = distilled(with_graphs=False, **how)
    mended = run.report().reserved.simulated_peak_reserved_bytes
    without = distilled(with_graphs=True, **how).report().without
    assert without.least_bytes <= mended <= without.most_bytes


@pytest.mark.parametrize("program", [evaluated, distilled])
def test_where_it_does_not_fit_either_the_batch_that_does_is_told(program):
    mended = program(with_graphs=False).report().reserved.simulated_peak_reserved_bytes
    run = program(with_graphs=True, batch=4096)
    report = run.report(budget_bytes=mended // 2)
    mended = run.mended(run.recording(), report.peak_event)
    facts = mended_facts(report, ["x.py", "--batch", "4096"], mended)
    told = {fact.label: fact.text for fact in pretend_summary(report, ["x.py"], mended=facts).facts}
    assert "fit" in told["without"]
    assert "by proportion" in told["without"]


@pytest.mark.parametrize("program", [evaluated, distilled])
def test_nothing_is_told_of_a_program_without_a_fault(program):
    assert program(with_graphs=False).report().without is None


def test_what_is_freed_sooner_is_gone_from_there_on():
    recording = evaluated(with_graphs=True).recording()
    ends = np.append(recording.phase_starts[1:], len(recording.events))
    rows = np.flatnonzero(recording.num_bytes > MIB)
    sooner = freed_sooner(recording, rows, ends[recording.phase[rows]])
    assert sorted(sooner.num_bytes) == sorted(recording.num_bytes)
    births = np.flatnonzero(sooner.events >= 0)
    assert (sooner.born[sooner.events[births]] == births).all()
    frees = np.flatnonzero(sooner.events < 0)
    assert (sooner.died[~sooner.events[frees]] == frees).all()
    ends = np.append(sooner.phase_starts[1:], len(sooner.events))
    assert (sooner.died[rows] >= 0).all()
    assert (sooner.died[rows] <= ends[sooner.phase[rows]]).all()
    assert (sooner.live_bytes() >= 0).all()


def test_what_is_freed_later_stays_as_it_was():
    recording = evaluated(with_graphs=True).recording()
    rows = np.arange(len(recording.num_bytes))
    same = freed_sooner(recording, rows, np.full(len(rows), len(recording.events) + 1))
    assert (same.events == recording.events).all()
    assert (same.died == recording.died).all()
