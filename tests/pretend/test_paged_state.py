"""bitsandbytes' paged optimizers on the pretend GPU: their moments are no tensors of it."""

import pytest
import torch

from brimful import pretend

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
