"""What becomes of the processes of a run when the one that started them is killed."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.launch import watchers

from brimful.process.child import run_in_child

pytestmark = pytest.mark.torch

PATIENCE_S = 150.0
ALL_GONE_S = 30.0
HERE = Path(__file__).parents[2]


@pytest.fixture
def started(tmp_path):
    """Start a function of ``watchers`` in a process of its own; its children end with the test."""
    seen = {}

    def start(call):
        code = f"if __name__ == '__main__':\n from tests.launch import watchers; watchers.{call}"
        (tmp_path / "main.py").write_text(code)
        paths = [str(HERE), str(HERE / "tests"), *filter(None, sys.path)]
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, tmp_path / "main.py"], cwd=tmp_path, stdout=log, stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )  # fmt: skip
        seen[process] = []
        return process

    def family(process):
        seen[process] = psutil.Process(process.pid).children(recursive=True)
        return seen[process]

    yield start, family
    for process, children in seen.items():
        process.kill()
        process.wait()
        for child in children:
            if child.is_running():
                child.kill()


def wait_for(path, process, log):
    end = time.monotonic() + PATIENCE_S
    while not (path.exists() and path.read_bytes()):
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < end, log.read_text()[-3000:]
        time.sleep(0.05)


@pytest.mark.long  # what ends a worker is below, what it saves in train/test_interrupt.py
def test_workers_save_and_end_when_the_launcher_is_killed(started, tmp_path):
    start, family = started
    launcher = start(f"launch_endlessly({str(tmp_path)!r})")
    wait_for(tmp_path / "run" / "metrics.jsonl", launcher, tmp_path / "log")
    workers = family(launcher)
    assert len(workers) >= 2
    launcher.kill()
    launcher.wait()
    _, alive = psutil.wait_procs(workers, timeout=ALL_GONE_S)
    assert not alive, (tmp_path / "log").read_text()[-3000:]
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))


def test_a_worker_whose_step_never_ends_is_ended(started, tmp_path):
    start, family = started
    parent = start(f"stuck_child({str(tmp_path)!r})")
    wait_for(tmp_path / "begun", parent, tmp_path / "log")
    children = family(parent)
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs(children, timeout=ALL_GONE_S)
    assert not alive
    assert "has gone" in (tmp_path / "log").read_text()


def test_what_is_run_in_a_child_comes_back():
    assert run_in_child(watchers.doubled, 21) == 42
