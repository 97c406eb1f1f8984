"""The fixture, as a library that trains would use it: in a pytest of its own."""

import subprocess
import sys

import pytest

import processes

SUITE = """
import pytest
import torch

def step(device):
    model = torch.nn.Linear(1024, 1024).to(device)
    model(torch.ones(8, 1024, device=device)).sum().backward()

def test_within_budget(pretend_gpu):
    with pretend_gpu("t4") as run:
        step("cuda")
    assert run.peak_allocated_bytes <= 32 * 2**20

def test_over_budget(pretend_gpu):
    with pretend_gpu("t4") as run:
        step("cuda")
    assert run.peak_allocated_bytes <= 2**20

def test_twice(pretend_gpu):
    with pretend_gpu("t4", says_cuda=False) as run:
        step("gpu")
    with pretend_gpu("h100-80gb") as other:
        step("cuda")
    assert run.report().card != other.report().card

def test_nothing_on_it(pretend_gpu):
    with pretend_gpu():
        step("cpu")
"""


COMMAND = ("-m", "pytest", "-q", "-p", "no:cacheprovider")


def pytest_without_torch(folder, *arguments):
    command = [sys.executable, *COMMAND, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.torch
def test_a_step_is_held_to_its_budget(tmp_path):
    (tmp_path / "test_step.py").write_text(SUITE)
    done = processes.run(COMMAND, cwd=tmp_path)
    assert "2 failed, 2 passed" in done.stdout, done.stdout
    assert "FAILED test_step.py::test_over_budget - assert" in done.stdout
    assert "test_nothing_on_it - brimful.errors.InputError: 0 " in done.stdout


def test_a_suite_that_does_not_use_it_imports_nothing_for_it(tmp_path):
    (tmp_path / "test_light.py").write_text(
        "import sys\n\ndef test_light():\n"
        "    heavy = {'torch', 'numpy', 'rich', 'msgspec', 'brimful.pretend.session'}\n"
        "    assert not heavy & set(sys.modules)\n"
    )
    # Other people's plugins may import what they like.
    done = pytest_without_torch(
        tmp_path, "-p", "no:hypothesispytest", "-p", "no:anyio", "-p", "no:xdist"
    )
    assert done.returncode == 0, done.stdout
    assert "brimful" in pytest_without_torch(tmp_path, "--fixtures", "-v").stdout
