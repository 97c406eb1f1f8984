"""The examples, unmodified: for real on a CPU and on the pretend GPU; their peaks are one number.

Every example's row stands in ``validation/pretend_examples.json``; one is made again here.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import processes

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "validation"))

from examples_part import BAR, CASES, EXAMPLES, Example, compare  # noqa: E402


def test_every_example_has_a_row():
    scripts = {path.name for path in EXAMPLES.glob("*.py")} - {"make_data.py"}
    assert {case.script for case in CASES} == scripts


# Pretend/test_programs.py has real peaks, validation/pretend_examples.json examples.
@pytest.mark.long
def test_an_example_peaks_where_it_really_does(monkeypatch):
    monkeypatch.setattr(subprocess, "run", processes.run_command)
    row = compare(Example("plain_loop.py", ("--steps", "2", "--layers", "2", "--batch", "4")))
    assert abs(row.peak_error) <= BAR / 20, row
    assert row.simulated_other_bytes > 0.4 * row.measured_peak_allocated_bytes


@pytest.mark.few(1)
@pytest.mark.parametrize("script", ["lora_peft.py", "hf_trainer.py"])
def test_an_example_fits_a_card_and_not_a_budget_below_its_peak(script):
    command = ["-m", "brimful", "pretend", "--gpu", "t4", "--memory-budget", "100MiB"]
    done = processes.run([*command, "--", EXAMPLES / script, "--steps", "2"])
    assert done.returncode == 1, done.stderr
    assert "\nNO " in done.stdout
