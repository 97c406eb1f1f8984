"""Every block of the page is run: Python as it stands, commands as a shell would."""

import re
import shlex
from pathlib import Path

import pytest

import processes

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "know-your-peak.md").read_text("utf-8")
PYTHON = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = re.findall(r"^\$ (brimful .*)$", PAGE, re.MULTILINE)


def test_the_page_has_what_is_run():
    assert len(PYTHON) + len(COMMANDS) == PAGE.count("```") // 2
    assert len(PYTHON) >= 6
    assert len(COMMANDS) == 2


@pytest.mark.long
@pytest.mark.parametrize("place", range(len(PYTHON)))
def test_a_block_runs(place, tmp_path):
    """In a process of its own; what is a test runs under pytest."""
    path = tmp_path / "test_block.py"
    path.write_text(PYTHON[place])
    runner = ["-m", "pytest", "-q"] if "def test_" in PYTHON[place] else []
    done = processes.run([*runner, path], cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(command):
    done = processes.run(["-m", *shlex.split(command)], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("FITS ")


def test_lines_are_short():
    assert max(map(len, PAGE.splitlines())) <= 120
