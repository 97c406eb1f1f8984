"""A batch that no argument says: a number that a script or a notebook writes out."""

import json

import pytest
import torch
from torch import nn

from brimful import pretend
from brimful.pretend.scripts import written_in
from brimful.show.sizes import combined_facts, largest_facts
from brimful.units import MIB

pytestmark = pytest.mark.torch

TEXT = "BATCH = 384\nNUM_BATCHES = 768\n"


def trained(batch=384):
    """Train on numbers alone, which say nothing of a batch."""
    with pretend.gpu("t4") as run:
        blocks = (nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(12))
        model = nn.Sequential(*blocks).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(3):
            x = torch.stack([torch.randn(64, 512) for _ in range(batch)]).cuda()
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return run


@pytest.fixture(scope="module")
def run():
    return trained()


@pytest.fixture(params=["x.py", "x.ipynb"])
def program(tmp_path, request):
    script = tmp_path / request.param
    cells = [{"cell_type": "code", "source": ["!nvidia-smi\n", *TEXT.splitlines(keepends=True)]}]
    is_notebook = script.suffix == ".ipynb"
    script.write_text(json.dumps({"cells": cells}) if is_notebook else TEXT, "utf-8")
    return [str(script)]


def test_how_much_of_a_batch_that_the_text_writes_out_fits(run, program):
    report = run.report(budget_bytes=256 * MIB)
    [fact] = largest_facts(report, program, None, run.recording())
    least, _, rest = fact.text.removeprefix("about ").partition(" in place of ")
    assert rest == "BATCH = 384, by proportion"
    num = int(least.split()[0])
    held = trained(num).report().reserved.simulated_peak_reserved_bytes
    assert 0.8 * 256 * MIB < held <= 256 * MIB


def test_a_combination_names_it_too(run, program):
    [fact] = combined_facts(run.report(budget_bytes=256 * MIB), program, run.recording())
    assert "in place of BATCH = 384" in fact.text


def test_nothing_is_told_of_a_number_that_is_in_no_size(run, tmp_path):
    script = tmp_path / "x.py"
    script.write_text("batch_size = 100\n", "utf-8")
    report = run.report(budget_bytes=256 * MIB)
    assert largest_facts(report, [str(script)], None, run.recording()) == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("BATCH, LENGTH = 8, 64", [("BATCH", 8), ("LENGTH", 64)]),
        ("self.batch = 8", [("batch", 8)]),
        ("batch: int = 8", [("batch", 8)]),
        ("DataLoader(data, batch_size=8)", [("batch_size", 8)]),
        ("def f(a, batch=8, *, n=3, m): pass", [("batch", 8), ("n", 3)]),
        ("config = {'batch_size': 8, **more}", [("batch_size", 8)]),
        ("batch = 2 * 4; on = True; a, b = f()", []),
        ("x = (", []),
    ],
)
def test_the_names_behind_which_numbers_stand(tmp_path, text, told):
    script = tmp_path / "x.py"
    script.write_text(text, "utf-8")
    assert written_in(str(script)) == told


def test_of_a_module_nothing_is_read():
    assert written_in("-m") == []
