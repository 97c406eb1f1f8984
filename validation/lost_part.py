"""A group of four workers of which one after another is killed, and what becomes of the run.

One run under the launcher that ``brimful train`` uses: at random moments one worker gets SIGKILL;
the group starts again from the newest checkpoint by itself. Beside it the same run in peace.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import psutil
from evidence import Summary, relative
from group_rows import LostRow
from progress import shown

from brimful.files.writing import write_bytes
from brimful.train.checkpoint import list_checkpoints
from brimful.values.run_files import CHECKPOINTS, METRICS_FILE, Row, TrainRow

NUM_WORKERS = 4
NUM_KILLS, NUM_QUICK_KILLS = 30, 1
NUM_STEPS, NUM_QUICK_STEPS = 400, 20
CHECKPOINT_EVERY = 5
LOSS_BAR = 1e-5
_TIMEOUT_S = 7200
_POLL_S = 0.05
_LONGEST_WAIT_S = 2.0
"""A kill comes so many seconds at most after the group has gone on."""
_CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 500,
    "max_position_embeddings": 64, "tie_word_embeddings": True,
}  # fmt: skip
_FLAGS = (
    "--zero", "3", "--precision", "fp32", "--seq-len", "32", "--global-batch", "8",
    "--micro-batch", "1", "--eval-every", "1000", "--keep", "3",
    "--checkpoint-every", str(CHECKPOINT_EVERY),
)  # fmt: skip


def run(*, seed: int, quick: bool) -> tuple[list[LostRow], Summary]:
    """Train in peace, then with kills."""
    rng = random.Random(seed)  # noqa: S311 - moments, not secrets
    num_steps = NUM_QUICK_STEPS if quick else NUM_STEPS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_bytes(folder / "model.json", msgspec.json.encode(_CONFIG))
        peace = _start(folder, "peace", num_steps, max_restarts=0)
        assert peace.wait(_TIMEOUT_S) == 0, "the run in peace failed"
        rows = _disturbed(folder, num_steps, NUM_QUICK_KILLS if quick else NUM_KILLS, rng)
        final = [_losses(folder / kind)[num_steps] for kind in ("peace", "killed")]
    return rows, _summarize(rows, relative(final[1], final[0]), num_steps)


def _start(
    folder: Path, name: str, num_steps: int, *, max_restarts: int
) -> "subprocess.Popen[bytes]":
    command = [
        sys.executable, "-m", "brimful", "train", str(folder / "model.json"), "--data", "stdlib",
        "--gpus", f"{NUM_WORKERS}xlocal", *_FLAGS, "--steps", str(num_steps),
        "--max-restarts", str(max_restarts), "--out", str(folder / name),
    ]  # fmt: skip
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)  # noqa: S603


def _disturbed(folder: Path, num_steps: int, num_kills: int, rng: random.Random) -> list[LostRow]:
    """Kill workers of one run until it was enough, then let it end."""
    out, rows = folder / "killed", []
    process = _start(folder, "killed", num_steps, max_restarts=2 * num_kills)
    begun = 0
    for _ in shown("killed", range(num_kills)):
        begun = _wait_for_step(process, out, after=begun)
        time.sleep(rng.random() * _LONGEST_WAIT_S)
        rank, at_step = _kill_one(process, rng), _last_step(out)
        newest = _newest(out)
        begun = _wait_for_restart(process, out, at_step)
        rows.append(
            LostRow(
                rank=rank,
                killed_at_step=at_step,
                newest_checkpoint=newest,
                resumed_at_step=begun,
                num_lost=at_step - begun + 1,
            )
        )
    assert process.wait(_TIMEOUT_S) == 0, (folder / "killed.log").read_text()[-2000:]
    return rows


def _kill_one(process: "subprocess.Popen[bytes]", rng: random.Random) -> int:
    """Kill a worker; they are started in the order of their ranks."""
    while True:
        assert process.poll() is None, "the run ended before a worker could be killed"
        children = psutil.Process(process.pid).children()
        workers = sorted(filter(_is_worker, children), key=lambda child: child.pid)
        if len(workers) == NUM_WORKERS:
            chosen = rng.randrange(NUM_WORKERS)
            os.kill(workers[chosen].pid, signal.SIGKILL)
            return chosen
        time.sleep(_POLL_S)


def _is_worker(child: psutil.Process) -> bool:
    try:
        return _is_alive(child) and any("spawn_main" in word for word in child.cmdline())
    except psutil.Error:  # it ended in between
        return False


def _is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _wait_for_step(process: "subprocess.Popen[bytes]", out: Path, *, after: int) -> int:
    """Wait until a step later than ``after`` was done."""
    while _last_step(out) <= after:
        assert process.poll() is None, "the run ended before it was killed often enough"
        time.sleep(_POLL_S)
    return _last_step(out)


def _wait_for_restart(process: "subprocess.Popen[bytes]", out: Path, at_step: int) -> int:
    """Wait until the curve was cut back or went on; returns the first step that was done then."""
    size, restarted = (out / METRICS_FILE).stat().st_ino, False
    while not restarted:
        assert process.poll() is None, "the run ended while it should have started again"
        restarted = (out / METRICS_FILE).stat().st_ino != size
        time.sleep(_POLL_S)
    kept = _last_step(out)
    del at_step
    return kept + 1


def _rows(out: Path) -> list[TrainRow]:
    try:
        lines = (out / METRICS_FILE).read_bytes().split(b"\n")[:-1]
    except OSError:
        return []
    rows = [msgspec.json.decode(line, type=Row) for line in lines]
    return [row for row in rows if isinstance(row, TrainRow)]


def _losses(out: Path) -> dict[int, float]:
    return {row.step: row.loss for row in _rows(out) if row.loss is not None}


def _last_step(out: Path) -> int:
    rows = _rows(out)
    return rows[-1].step if rows else 0


def _newest(out: Path) -> int:
    found = list_checkpoints(out / CHECKPOINTS)
    return int(found[-1].name.removeprefix("step-")) if found else 0


def _summarize(rows: list[LostRow], final_error: float, num_steps: int) -> Summary:
    missed = [
        f"rank {row.rank} killed at step {row.killed_at_step}: {row.num_lost} steps lost"
        for row in rows
        if row.num_lost > CHECKPOINT_EVERY + 1
    ]
    if abs(final_error) > LOSS_BAR:
        missed.append(f"the final loss differs by {final_error:.1e}")
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(),
        bars=(
            (
                f"no kill loses more than the {CHECKPOINT_EVERY} steps between checkpoints and the "
                f"one in progress, and the loss of step {num_steps} is within {LOSS_BAR:g} of the "
                f"run in peace"
            ),
        ),
        findings=(
            (
                f"the final loss differs by {final_error:.1e}; most steps lost: "
                f"{max(row.num_lost for row in rows)}"
            ),
        ),
        missed=tuple(missed),
    )
