"""A script's time: what is answered where it is over, by a clock that stands still."""

import json

import pytest

from brimful.pretend import time_limit

pytestmark = pytest.mark.torch

SCRIPT = """
import signal
import torch

model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(50):
    model(torch.ones(8, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    try:
        signal.raise_signal(signal.SIGALRM)
    except BaseException:
        if {catches} or step > 20:
            raise
"""


@pytest.fixture
def script(tmp_path):
    def written(*, catches=True):
        path = tmp_path / "loop.py"
        path.write_text(SCRIPT.format(catches=catches))
        return str(path)

    return written


@pytest.fixture
def clock(monkeypatch):
    def stands_at(*seconds):
        told = iter(seconds)
        monkeypatch.setattr(time_limit.time, "monotonic", lambda: next(told, seconds[-1]))

    return stands_at


def test_a_script_is_ended_after_two_steps_that_are_whole(script, brimful, clock):
    clock(0, 50)
    said = brimful("pretend", "--gpu", "l4", "--json", "--", script())
    cut = json.loads(said.out)["cut"]
    assert (said.code, cut) == (0, {"seconds": 50, "num_steps": 2, "phase": "step 3 optimizer"})


def test_what_follows_is_said_not_to_have_been_run(script, brimful, clock):
    clock(0, 50)
    said = brimful("pretend", "--gpu", "l4", "--", script())
    assert said.out.startswith("FITS")
    assert "after 2 steps in 50 s; what follows was not run: --budget 100" in " ".join(
        said.out.split()
    )


def test_a_script_of_no_whole_steps_is_unknown_when_its_time_is_over_twice(script, brimful, clock):
    clock(0, 95)
    said = brimful("pretend", "--gpu", "l4", "--", script())
    assert said.code == 124
    assert said.out.startswith("UNKNOWN")
    assert "simulated, at least" in said.out
    assert "after 95 s in step 1 optimizer, before two steps were whole" in " ".join(
        said.out.split()
    )


def test_a_script_that_catches_everything_is_ended_again(script, brimful, clock):
    clock(0, 50, 50, 50, 50, 56)
    said = brimful("pretend", "--gpu", "l4", "--json", "--", script(catches=False))
    assert json.loads(said.out)["cut"]["num_steps"] > 2


def test_a_script_that_ends_by_itself_was_not_cut(script, brimful, clock):
    clock(0, 1)
    said = brimful("pretend", "--gpu", "l4", "--json", "--", script())
    assert json.loads(said.out)["cut"] is None
