"""FSDP2 and DDP under ``torch.compile`` on the pretend GPU, against the same run on a CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

VALIDATION = Path(__file__).parents[2] / "validation"
sys.path.append(str(VALIDATION))

from script_worker import measure  # noqa: E402

# A minute each: Inductor's C++ code is compiled for the real run.
pytestmark = [pytest.mark.torch, pytest.mark.long]
SCRIPT = VALIDATION / "compiled" / "sharded.py"


@pytest.mark.parametrize(
    ("processes", "arguments"),
    [
        (2, ("fsdp", "--compile")),
        (2, ("fsdp", "--compile", "--checkpoint")),
        (1, ("ddp", "--compile")),
    ],
)
def test_groups_take_what_a_real_run_takes(processes, arguments):
    flags = ["--world-size", str(processes), "--kernels", "cpu", "--json", "--", str(SCRIPT)]
    done = subprocess.run(
        [sys.executable, "-m", "brimful", "pretend", *flags, *arguments],
        stdout=subprocess.PIPE,
        check=True,
    )
    said = json.loads(done.stdout)["simulated_peak_allocated_bytes"]
    truth = measure(SCRIPT, arguments).measured_peak_allocated_bytes
    assert said == pytest.approx(truth, rel=2e-4)
