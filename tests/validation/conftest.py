"""The evidence's own modules are scripts, not part of the package: they are found by path."""

import subprocess
import sys
from pathlib import Path

import pytest

import processes

sys.path.insert(0, str(Path(__file__).parents[2] / "validation"))


@pytest.fixture(autouse=True)
def _forked(monkeypatch):
    """The evidence's processes are forks of a server that has torch loaded."""
    monkeypatch.setattr(subprocess, "run", processes.run_command)
