"""Runs killed for good at random moments, saving included, and what they become when resumed."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from evidence import Case, KilledRow, Summary
from progress import shown
from provenance import ROOT
from sampler import cluster_of, job_of

from brimful.cost.estimate import estimate
from brimful.models.config import read_config
from brimful.plan import PLAN_SCHEMA, Plan, write_yaml
from brimful.run_files import CHECKPOINTS, METRICS_FILE, TOKENS, Row, TrainRow
from brimful.strategy import Strategy

NUM_KILLS, NUM_QUICK_KILLS = 12, 2
LEAST_SAVING = 2
"""Of the full number, at least so many must have been killed while they wrote a checkpoint."""
MOST_KILLS = 30
NUM_STEPS = 40
_TIMEOUT_S = 300
_POLL_S = 0.002
_MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 500,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": None,
}


class _Site(NamedTuple):
    """Where runs live, and what is trained on."""

    folder: Path
    plan: Path
    data: Path
    case: Case


class _Ended(NamedTuple):
    """How a killed run was left."""

    after_s: float
    at_step: int
    was_saving: bool


def run(*, seed: int, quick: bool) -> tuple[list[KilledRow], Summary]:
    """Train once in peace, then kill and resume."""
    rng = random.Random(seed)  # noqa: S311 - moments, not secrets
    with tempfile.TemporaryDirectory() as folder:
        site = _prepare(Path(folder))
        training_s = _train_in_peace(site)
        num_kills = NUM_QUICK_KILLS if quick else NUM_KILLS
        numbers = range(num_kills)
        rows = [
            _kill_and_resume(site, f"killed-{number}", rng.uniform(0, training_s))
            for number in shown("killed and resumed", numbers)
        ]
        while not quick and _num_saving(rows) < LEAST_SAVING and len(rows) < MOST_KILLS:
            name = f"killed-{len(rows)}"
            rows.append(_kill_and_resume(site, name, rng.uniform(0, training_s)))
    return rows, _summarize(rows, quick=quick)


def _num_saving(rows: list[KilledRow]) -> int:
    return sum(row.was_saving for row in rows)


def _prepare(folder: Path) -> _Site:
    """Write a plan, and text that nobody changes meanwhile."""
    job = job_of(read_config("tiny", _MODEL), precision="fp32", seq_len=64, global_batch=4)
    job = msgspec.structs.replace(job, num_steps=NUM_STEPS, learning_rate=1e-2, warmup_steps=4)
    strategy = Strategy(
        micro_batch=2, activation_checkpointing="none", loss_chunks=1, attention="sdpa"
    )
    case = Case(job=job, strategy=strategy, kernels="cpu")
    cluster = cluster_of("cpu")
    plan = Plan(
        schema=PLAN_SCHEMA,
        job=job,
        cluster=cluster,
        strategy=strategy,
        estimate=estimate(job, cluster, strategy),
    )
    write_yaml(plan, folder / "plan.yaml")
    data = folder / "text"
    data.mkdir()
    for path in sorted((ROOT / "src" / "brimful" / "models").glob("*.py")):
        shutil.copy(path, data)
    return _Site(folder, folder / "plan.yaml", data, case)


def _start(site: _Site, name: str, *, resume: bool) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "brimful", "train", str(site.plan)]
    command += ["--data", str(site.data), "--out", str(site.folder / name)]
    # A checkpoint at every second step: a good part of the time is spent on saving.
    command += ["--checkpoint-every", "2", "--eval-every", "5", *(["--resume"] * resume)]
    own = {"OMP_NUM_THREADS": "1", "BRIMFUL_CACHE": str(site.folder / TOKENS)}
    return subprocess.Popen(  # noqa: S603 - our own command line
        command,
        env={**os.environ, **own},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(process: "subprocess.Popen[str]") -> None:
    _, errors = process.communicate(timeout=_TIMEOUT_S)
    if process.returncode != 0:
        raise RuntimeError(f"brimful train ended with {process.returncode}: {errors}")


def _train_in_peace(site: _Site) -> float:
    """Return the seconds from the first row of the curve to the last checkpoint."""
    process = _start(site, "whole", resume=False)
    _await_first_row(site.folder / "whole", process)
    start_s = time.perf_counter()
    last = site.folder / "whole" / CHECKPOINTS / f"step-{NUM_STEPS:08d}"
    while process.poll() is None and not last.exists():
        time.sleep(_POLL_S)
    training_s = time.perf_counter() - start_s
    _finish(process)
    return training_s


def _await_first_row(out: Path, process: "subprocess.Popen[str]") -> None:
    metrics = out / METRICS_FILE
    while process.poll() is None and not (metrics.is_file() and metrics.stat().st_size):
        time.sleep(_POLL_S)


def _kill_and_resume(site: _Site, name: str, after_s: float) -> KilledRow:
    out = site.folder / name
    ended = _kill(site, name, after_s)
    resumed_from = _newest(out)
    _finish(_start(site, name, resume=True))
    rows = curve(out)
    return KilledRow(
        case=site.case,
        killed_after_s=round(ended.after_s, 4),
        killed_at_step=ended.at_step,
        was_saving=ended.was_saving,
        resumed_from=resumed_from,
        num_rows=len(rows),
        is_bit_equal=rows == curve(site.folder / "whole"),
    )


def _kill(site: _Site, name: str, after_s: float) -> _Ended:
    """Start a run and kill it ``after_s`` seconds after its first row."""
    out = site.folder / name
    process = _start(site, name, resume=False)
    _await_first_row(out, process)
    time.sleep(after_s)
    process.kill()
    process.communicate(timeout=_TIMEOUT_S)
    if process.returncode != -signal.SIGKILL:
        # It was faster than the first: kill the next one half as late.
        shutil.rmtree(out)
        return _kill(site, name, after_s / 2)
    saving = list((out / CHECKPOINTS).glob(".step-*.tmp"))
    steps = [row.step for row in _rows(out) if isinstance(row, TrainRow)]
    return _Ended(after_s, max(steps, default=0), bool(saving))


def _newest(out: Path) -> int:
    names = [path.name for path in (out / CHECKPOINTS).glob("step-*")]
    return max((int(name.removeprefix("step-")) for name in names), default=0)


def _rows(out: Path) -> list[Row]:
    """Read the rows that are whole."""
    lines = (out / METRICS_FILE).read_bytes().split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=Row) for line in lines]


def curve(out: Path) -> list[dict[str, Any]]:
    """List all that a resumed run must repeat to the last bit: every row but its timings."""
    timings = {"step_s", "tokens_per_s"}
    rows = [msgspec.to_builtins(row) for row in _rows(out)]
    return [{k: v for k, v in row.items() if k not in timings} for row in rows]


def _summarize(rows: list[KilledRow], *, quick: bool) -> Summary:
    missed = [
        f"killed at step {row.killed_at_step}, resumed from {row.resumed_from}: another curve"
        for row in rows
        if not row.is_bit_equal
    ]
    if not quick and _num_saving(rows) < LEAST_SAVING:
        missed.append(f"only {_num_saving(rows)} of {len(rows)} were killed while saving")
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(),
        bars=("every resumed curve equals the undisturbed one to the last bit",),
        missed=tuple(missed),
    )
