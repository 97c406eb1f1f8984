"""bitsandbytes' paged optimizers on the pretend GPU: their moments are no tensors of it."""

import pytest
import torch

from brimful import pretend
from brimful.show.pretend import pretend_summary
from brimful.units import parse_bytes

pytestmark = pytest.mark.torch

WIDTH = 512
"""Squared, more than the 100,000 elements from which on state is paged."""


def states_of(name):
    """Return what a step adds to a GPU and to the host, in bytes."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    with pretend.gpu() as run:
        layer = torch.nn.Linear(WIDTH, WIDTH, bias=False, device="cuda")
        optimizer = getattr(bitsandbytes.optim, name)(layer.parameters(), lr=1e-3)
        layer.weight.grad = torch.zeros_like(layer.weight)
        before = torch.cuda.memory_allocated()
        optimizer.step()
        added = torch.cuda.memory_allocated() - before
    return added, int(run.recording("cpu").live_bytes()[-1:].sum())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "moment_bytes"), [("8bit", 1), ("32bit", 4)])
def test_moments_are_on_the_host_where_they_are_paged(kind, moment_bytes):
    here, nothing = states_of(f"AdamW{kind}")
    rest, away = states_of(f"PagedAdamW{kind}")
    assert here - rest == 2 * moment_bytes * WIDTH**2
    assert away - nothing == 2 * moment_bytes * WIDTH**2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("memory", "fits"), [("1GiB", "all"), ("3MiB", "0 B")])
def test_the_answer_says_how_much_has_room_beside_the_peak(memory, fits):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    with pretend.gpu() as run:
        layer = torch.nn.Linear(WIDTH, WIDTH, bias=False, device="cuda")
        optimizer = bitsandbytes.optim.PagedAdamW32bit(layer.parameters(), lr=1e-3)
        for _ in range(2):
            layer(torch.ones(1, WIDTH, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    report = run.report(budget_bytes=parse_bytes(memory))
    assert report.host.paged_bytes == 8 * WIDTH**2
    [told] = [x.text for x in pretend_summary(report, ["x.py"]).facts if x.label == "paged"]
    assert told.startswith("2.00 MiB of optimizer state in managed memory, of which")
    assert f"{fits} fit" in told
