"""Runs killed for good at random moments, saving included, and what they become when resumed.

Runs of several kinds (precision, loss scaling, optimizer, adapters), saving while training waits
and in the background. Every second kill waits for the next save to begin and falls into it.
"""

import hashlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from evidence import Case, KilledRow, SaveMode, Summary
from progress import shown
from provenance import ROOT
from sampler import cluster_of, job_of

from brimful.cost.estimate import estimate_or_none
from brimful.models.config import read_config
from brimful.train.checkpoint import is_sound, list_checkpoints
from brimful.values.job import Adapter, Job, LossScale
from brimful.values.plan import PLAN_SCHEMA, Plan, write_yaml
from brimful.values.run_files import CHECKPOINTS, METRICS_FILE, MODEL, TOKENS, Row, TrainRow
from brimful.values.strategy import Strategy

NUM_KILLS, NUM_QUICK_KILLS = 50, 3
LEAST_SAVING = 15
"""Of the full number, at least so many must have been killed while they wrote a checkpoint."""
MOST_KILLS = 80
NUM_STEPS = 40
NUM_AT_ONCE = 2
"""Runs side by side: each is one thread, and half of its time is Python starting."""
_TIMEOUT_S = 300
_POLL_S = 0.002
_SAVE_S = 0.02
"""A kill that waits for a save comes within so many seconds of its beginning."""
_MODES: tuple[SaveMode, ...] = ("sync", "async")
STRATEGY = Strategy(micro_batch=2, activation_checkpointing="none", loss_chunks=1, attention="sdpa")
_OF_THE_PROCESS = {"step_s", "tokens_per_s", "mfu", "hfu", "used_bytes", "peak_bytes"}
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
# So large, and growing so fast, that some steps are skipped.
_LOSS_SCALE = LossScale(
    initial_scale=2.0**28, growth_factor=8.0, backoff_factor=0.125, growth_interval=4
)
_ADAPTER = Adapter(
    rank=4,
    alpha=8.0,
    targets=("all-linear",),
    trained_modules=(),
    dtype="same",
    base="same",
    upcast="none",
    input_requires_grad=False,
)
_KINDS: tuple[dict[str, Any], ...] = (
    {"precision": "fp32"},
    {"precision": "fp16-mixed", "loss_scale": _LOSS_SCALE},
    {"precision": "bf16-mixed"},
    {"precision": "bf16-master"},
    {"precision": "fp32", "optimizer": "sgd", "beta1": 0.9},
    {"precision": "fp32", "method": "lora", "adapter": _ADAPTER},
)
"""What differs between the jobs."""


class _Site(NamedTuple):
    """Where runs of one kind live, and what is trained on."""

    folder: Path
    plan: Path
    data: Path
    case: Case


class _Peace(NamedTuple):
    """A run that nobody disturbed: seconds from its first row to its end, and what it became."""

    site: _Site
    training_s: float
    curve: list[dict[str, Any]]
    weights: str


class _Kill(NamedTuple):
    """A kill to be: of which kind of run, and when; an aimed one waits for the next save."""

    name: str
    peace: _Peace
    mode: SaveMode
    after_s: float
    aimed_s: float | None


class _Ended(NamedTuple):
    """How a killed run was left."""

    after_s: float
    at_step: int
    was_saving: bool


def run(*, seed: int, quick: bool) -> tuple[list[KilledRow], Summary]:
    """Train once of each kind in peace, then kill and resume."""
    rng = random.Random(seed)  # noqa: S311 - moments, not secrets
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(NUM_AT_ONCE) as workers:
        kinds = _KINDS[:NUM_QUICK_KILLS] if quick else _KINDS
        sites = [_prepare(Path(folder) / str(n), kind) for n, kind in enumerate(kinds)]
        peace = list(workers.map(_train_in_peace, sites))
        draw = _kills(peace, rng)
        kills = list(itertools.islice(draw, NUM_QUICK_KILLS if quick else NUM_KILLS))
        done = workers.map(_kill_and_resume, kills)
        rows = [next(done) for _ in shown("killed and resumed", kills)]
        while not quick and _num_saving(rows) < LEAST_SAVING and len(rows) < MOST_KILLS:
            rows.append(_kill_and_resume(next(draw)))
    return rows, _summarize(rows, quick=quick)


def _kills(peace: list[_Peace], rng: random.Random) -> Iterator[_Kill]:
    """Draw kills: kinds in turn, both ways of saving of each, every second one aimed at a save."""
    for number in itertools.count():
        turn, kind = divmod(number, len(peace))
        yield _Kill(
            name=f"killed-{number}",
            peace=peace[kind],
            mode=_MODES[(turn + number) % len(_MODES)],
            after_s=rng.uniform(0, peace[kind].training_s),
            aimed_s=rng.uniform(0, _SAVE_S) if (turn // 2 + number) % 2 else None,
        )


def _num_saving(rows: list[KilledRow]) -> int:
    return sum(row.was_saving for row in rows)


def _job(kind: dict[str, Any]) -> Job:
    job = job_of(
        read_config("tiny", _MODEL), precision=kind["precision"], seq_len=64, global_batch=4
    )
    own = {"num_steps": NUM_STEPS, "learning_rate": 1e-2, "warmup_steps": 4}
    return msgspec.structs.replace(job, **own, **kind)


def _prepare(folder: Path, kind: dict[str, Any]) -> _Site:
    """Write a plan, and text that nobody changes meanwhile."""
    job = _job(kind)
    case = Case(job=job, strategy=STRATEGY, kernels="cpu")
    cluster = cluster_of("cpu")
    plan = Plan(
        schema=PLAN_SCHEMA,
        job=job,
        cluster=cluster,
        strategy=STRATEGY,
        estimate=estimate_or_none(job, cluster, STRATEGY),
    )
    write_yaml(plan, folder / "plan.yaml")
    data = folder / "text"
    data.mkdir()
    for path in sorted((ROOT / "src" / "brimful" / "models").glob("*.py")):
        shutil.copy(path, data)
    return _Site(folder, folder / "plan.yaml", data, case)


def _start(
    site: _Site, name: str, *, mode: SaveMode, resume: bool = False
) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "brimful", "train", str(site.plan)]
    command += ["--data", str(site.data), "--out", str(site.folder / name), "--checkpoint", mode]
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


def _train_in_peace(site: _Site) -> _Peace:
    process = _start(site, "whole", mode="sync")
    _await_first_row(site.folder / "whole", process)
    start_s = time.perf_counter()
    last = site.folder / "whole" / CHECKPOINTS / f"step-{NUM_STEPS:08d}"
    while process.poll() is None and not last.exists():
        time.sleep(_POLL_S)
    training_s = time.perf_counter() - start_s
    _finish(process)
    out = site.folder / "whole"
    return _Peace(site, training_s, curve(out), weights_hash(out))


def _await_first_row(out: Path, process: "subprocess.Popen[str]") -> None:
    metrics = out / METRICS_FILE
    while process.poll() is None and not (metrics.is_file() and metrics.stat().st_size):
        time.sleep(_POLL_S)


def _await_save(out: Path, process: "subprocess.Popen[str]") -> None:
    while process.poll() is None and not _leftovers(out):
        pass


def _leftovers(out: Path) -> list[Path]:
    return list((out / CHECKPOINTS).glob(".step-*.tmp"))


def _kill_and_resume(kill: _Kill) -> KilledRow:
    site = kill.peace.site
    out = site.folder / kill.name
    ended = _kill(kill)
    num_unreadable = sum(not is_sound(path) for path in list_checkpoints(out / CHECKPOINTS))
    resumed_from = _newest(out)
    _finish(_start(site, kill.name, mode=kill.mode, resume=True))
    rows = curve(out)
    return KilledRow(
        case=site.case,
        checkpoint=kill.mode,
        was_aimed=kill.aimed_s is not None,
        killed_after_s=round(ended.after_s, 4),
        killed_at_step=ended.at_step,
        was_saving=ended.was_saving,
        num_unreadable=num_unreadable,
        resumed_from=resumed_from,
        num_rows=len(rows),
        is_bit_equal=rows == kill.peace.curve and weights_hash(out) == kill.peace.weights,
    )


def _kill(kill: _Kill) -> _Ended:
    """Start a run and kill it so long after its first row, or in the save that follows."""
    out = kill.peace.site.folder / kill.name
    process = _start(kill.peace.site, kill.name, mode=kill.mode)
    _await_first_row(out, process)
    start_s = time.perf_counter()
    time.sleep(kill.after_s)
    if kill.aimed_s is not None:
        _await_save(out, process)
        time.sleep(kill.aimed_s)
    process.kill()
    after_s = time.perf_counter() - start_s
    process.communicate(timeout=_TIMEOUT_S)
    if process.returncode != -signal.SIGKILL:
        # It was faster than the first: kill the next one half as late.
        shutil.rmtree(out)
        return _kill(kill._replace(after_s=kill.after_s / 2))
    steps = [row.step for row in _rows(out) if isinstance(row, TrainRow)]
    return _Ended(after_s, max(steps, default=0), bool(_leftovers(out)))


def _newest(out: Path) -> int:
    names = [path.name for path in (out / CHECKPOINTS).glob("step-*")]
    return max((int(name.removeprefix("step-")) for name in names), default=0)


def _rows(out: Path) -> list[Row]:
    """Read the rows that are whole."""
    lines = (out / METRICS_FILE).read_bytes().split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=Row) for line in lines]


def curve(out: Path) -> list[dict[str, Any]]:
    """List all that a resumed run must repeat to the last bit: rows without time and memory."""
    rows = [msgspec.to_builtins(row) for row in _rows(out)]
    return [{k: v for k, v in row.items() if k not in _OF_THE_PROCESS} for row in rows]


def weights_hash(out: Path) -> str:
    """Return the SHA-256 of the weights that a run handed over."""
    digest = hashlib.sha256()
    paths = sorted((out / MODEL).rglob("*.safetensors"))
    if not paths:
        raise RuntimeError(f"{out / MODEL} holds no weights")
    for path in paths:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _summarize(rows: list[KilledRow], *, quick: bool) -> Summary:
    missed = [
        f"{_kind_of(row)} killed at step {row.killed_at_step}, resumed from {row.resumed_from}: "
        f"{'another curve' if not row.num_unreadable else 'a checkpoint is unreadable'}"
        for row in rows
        if not row.is_bit_equal or row.num_unreadable
    ]
    if not quick and _num_saving(rows) < LEAST_SAVING:
        missed.append(f"only {_num_saving(rows)} of {len(rows)} were killed while saving")
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(),
        bars=(
            "every resumed curve and its final weights equal the undisturbed ones to the last bit",
            "no checkpoint is unreadable after a kill",
        ),
        missed=tuple(missed),
    )


def _kind_of(row: KilledRow) -> str:
    job = row.case.job
    return f"{job.precision} {job.optimizer} {job.method} {row.checkpoint}"
