"""What a script warns of is shown, and nothing that libraries warn it of."""

import subprocess
import sys
import warnings

import pytest

from brimful import pretend
from brimful.cli.pretend_script import ended_by
from brimful.pretend.time_limit import Limits

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]

SCRIPT = """
import warnings
import torch

model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters())
loss = model(torch.randn(8, 64, device="cuda")).mean()
float(loss)  # of which PyTorch warns
loss.backward()
optimizer.step()
warnings.warn("an old name", FutureWarning)
warnings.warn("a word of its own")
"""


def test_warnings_of_libraries_are_not_on_the_screen(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: shown.append(str(message)))
    script = tmp_path / "x.py"
    script.write_text(SCRIPT, "utf-8")
    assert ended_by(pretend.gpu("t4"), [str(script)], Limits(60)) is None
    assert shown == ["a word of its own"]


REPLICATED = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
for _ in range(12):  # of the eleventh it looks for times
    model(torch.randn(8, 64, device="cuda")).mean().backward()
"""


def test_nor_is_what_ddp_says_of_times_that_are_not_collected(tmp_path):
    script = tmp_path / "x.py"
    script.write_text(REPLICATED, "utf-8")
    words = ["pretend", "--gpu", "t4", "--", "torchrun", "--nproc_per_node", "2", str(script)]
    done = subprocess.run(
        [sys.executable, "-m", "brimful", *words], capture_output=True, check=True, text=True
    )
    assert "Time stats" not in done.stderr
