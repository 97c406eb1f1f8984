"""Two agents of torchrun on this machine stand for two machines, of which one is lost."""

import json
import os
import socket
import subprocess
import sys
import time

import psutil
import pytest

from samples import TINY_LLAMA

pytestmark = pytest.mark.torch

NUM_STEPS, EVERY = 24, 4
PATIENCE_S = 600.0


@pytest.fixture
def started(tmp_path):
    """Start agents that share one run; they end with the test, whatever becomes of it."""
    (tmp_path / "tiny.json").write_text(json.dumps({**TINY_LLAMA, "vocab_size": 300}))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    agents = []

    def start():
        with (tmp_path / f"agent-{len(agents)}.log").open("wb") as log:
            agent = subprocess.Popen(
                command(tmp_path, port), stdout=log, stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        agents.append(agent)
        wait_for_host(port)  # whoever comes first keeps the store, and must not be the one lost
        return agent

    yield start
    for agent in agents:
        lose(agent)


def command(folder, port):
    return [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1",
        "--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-id", "both",
        "--rdzv-endpoint", f"localhost:{port}", "--local-addr", "localhost",
        "--rdzv-conf", "last_call_timeout=20,keep_alive_interval=1,keep_alive_max_attempt=3",
        "-m", "brimful", "train", str(folder / "tiny.json"), "--gpus", "2xlocal",
        "--data", "stdlib", "--zero", "3", "--precision", "fp32", "--seq-len", "16",
        "--global-batch", "4", "--micro-batch", "1", "--steps", str(NUM_STEPS),
        "--checkpoint-every", str(EVERY), "--out", str(folder / "run"),
    ]  # fmt: skip


def wait_for_host(port):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            socket.create_connection(("localhost", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return


def lose(agent):
    if agent.poll() is None:
        whole = psutil.Process(agent.pid)
        for process in (*whole.children(recursive=True), whole):
            process.kill()
    agent.wait()


def steps_of(folder):
    try:
        lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    except OSError:
        return []
    return [row for row in map(json.loads, lines) if row["kind"] == "train"]


def wait_for_step(folder, step, agent):
    end = time.monotonic() + PATIENCE_S
    while not steps_of(folder) or steps_of(folder)[-1]["step"] < step:
        assert agent.poll() is None, (folder / "agent-0.log").read_text()[-3000:]
        assert time.monotonic() < end, "no step was done in time"
        time.sleep(0.1)


@pytest.mark.long
def test_a_run_goes_on_without_a_lost_machine(started, tmp_path):
    first, second = started(), started()
    wait_for_step(tmp_path, EVERY + 1, first)
    lose(second)
    assert first.wait(PATIENCE_S) == 0, (tmp_path / "agent-0.log").read_text()[-3000:]
    rows = steps_of(tmp_path)
    assert [row["step"] for row in rows] == list(range(1, NUM_STEPS + 1))
    spread = ["slowest_rank" in row for row in rows]
    assert spread[0], "the first step was not taken by two"
    assert not spread[-1], "the last step was not taken by one"
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
