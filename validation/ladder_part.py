"""Runs whose memory runs out, at every place and on one and two processes: what becomes of them.

Each beside the same run in peace. What runs out is planted (``planted_shortage``), or it is a real
limit 40 % under the simulated peak of the first plan, which every process enforces.
"""

import math
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
from cases import Case
from evidence import Summary
from ladder_rows import LadderRow
from planted_shortage import GATHER, Plant, planting, quiet
from progress import shown
from safetensors.torch import load_file

from brimful.build import phases
from brimful.hardware.gpus import load_cluster
from brimful.launch.alone import run_alone
from brimful.launch.local import Group, launch
from brimful.models.config import read_config
from brimful.report.run_folder import RunFolder, read_run_folder
from brimful.simulate.ladder import next_plan
from brimful.simulate.run import simulate
from brimful.train.observers import PlainObserver
from brimful.train.settings import RunSettings, plain_settings
from brimful.values.job import Adapter, Job, plain_job
from brimful.values.plan import PLAN_SCHEMA, Plan
from brimful.values.strategy import Strategy, world_size

BAR = 1e-5
LIMIT = "limit"
LIMIT_SHARE = 0.6
NUM_STEPS, CHECKPOINT_EVERY, TIMEOUT_S = 6, 2, 120
PLACES = ("forward:3", "backward:1", "optimizer:1", "optimizer:4", LIMIT)
"""A pass in a later step and in the first; an update that was made, in the first step and later."""
_LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 500,
    "max_position_embeddings": 64, "tie_word_embeddings": True,
}  # fmt: skip
_GPT2 = {
    "model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4, "n_inner": 176,
    "vocab_size": 500, "n_positions": 64, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
_ADAPTER = Adapter(
    rank=4, alpha=8.0, targets=("all-linear",), trained_modules=(), dtype="same", base="same",
    upcast="none", input_requires_grad=False,
)  # fmt: skip
_FIELDS = {
    "seq_len": 32, "global_batch": 16, "num_steps": NUM_STEPS, "learning_rate": 3e-3, "seed": 5,
}  # fmt: skip
_ALONE = Strategy(micro_batch=16, activation_checkpointing="none", loss_chunks=1, attention="sdpa")


class _Kind(NamedTuple):
    """A job, and how it is run at first."""

    job: Job
    strategy: Strategy


def _kinds() -> list[_Kind]:
    """List what is run: a full model, one without a formula, adapters; over two processes."""
    llama, gpt2 = read_config("small-llama", _LLAMA), read_config("small-gpt2", _GPT2)
    full, adapted = plain_job(model=llama, **_FIELDS), plain_job(model=llama, **_FIELDS)
    adapted = msgspec.structs.replace(adapted, method="lora", adapter=_ADAPTER)
    packed = plain_job(model=gpt2, **_FIELDS, packing="documents", optimizer="sgd")
    two = {"micro_batch": 8}
    return [
        _Kind(full, _ALONE),
        _Kind(packed, msgspec.structs.replace(_ALONE, attention="eager")),
        _Kind(adapted, _ALONE),
        _Kind(full, msgspec.structs.replace(_ALONE, **two, zero=3, dp_shard=2)),
        _Kind(full, msgspec.structs.replace(_ALONE, **two, dp_replicate=2)),
    ]


def run(*, seed: int, quick: bool) -> tuple[list[LadderRow], Summary]:
    """Run every kind in peace, and then with every failure."""
    kinds = _kinds()[:1] if quick else _kinds()
    with tempfile.TemporaryDirectory() as name:
        text = Path(name) / "text.txt"
        text.write_text(_text(random.Random(seed)))  # noqa: S311 - words, not secrets
        rows = [
            row
            for number, kind in enumerate(kinds)
            for row in _rows_of(kind, Path(name) / str(number), text)
        ]
    return rows, summarize(rows)


def _text(rng: random.Random) -> str:
    words = ["brim", "vessel", "drop", "full", "over", "memory", "limit", "step"]
    lines = (" ".join(rng.choices(words, k=12)) + f" {n}" for n in range(900))
    return "\n\n".join(lines)


def _rows_of(kind: _Kind, folder: Path, text: Path) -> Iterator[LadderRow]:
    peace = _run(kind, folder / "peace", text, place=None)
    gathers = (f"{GATHER}:2",) if kind.strategy.zero == 3 else ()  # noqa: PLR2004 - a stage
    for place in shown(folder.name, [*PLACES, *gathers]):
        out = folder / place.replace(":", "-")
        yield _compare(kind, place, _run(kind, out, text, place=place), peace)


def _compare(kind: _Kind, place: str, run: RunFolder, peace: RunFolder) -> LadderRow:
    losses = [
        abs(mine.loss / theirs.loss - 1)
        for mine, theirs in zip(run.train_rows, peace.train_rows, strict=True)
        if mine.loss is not None and theirs.loss is not None
    ]
    assert len(losses) == NUM_STEPS
    weight_error, tensor_error = _weight_errors(run.run_dir, peace.run_dir)
    return LadderRow(
        case=Case(job=kind.job, strategy=kind.strategy, kernels="cpu"),
        place=place,
        limit_share=LIMIT_SHARE if place == LIMIT else None,
        takeovers=run.takeovers,
        num_steps=run.train_rows[-1].step,
        loss_error=max(losses),
        heldout_error=abs(run.eval_rows[-1].heldout_loss / peace.eval_rows[-1].heldout_loss - 1),
        weight_error=weight_error,
        tensor_error=tensor_error,
    )


def _weight_errors(run: Path, peace: Path) -> tuple[float, float]:
    """Return the relative difference of all weights as a whole, and the largest of a tensor."""
    (mine,), (theirs,) = (list((x / "model").glob("*.safetensors")) for x in (run, peace))
    ours, others = load_file(mine), load_file(theirs)
    assert ours.keys() == others.keys()
    parts = [(float((ours[k] - others[k]).norm()), float(others[k].norm())) for k in others]
    whole = math.hypot(*(part for part, _ in parts)) / math.hypot(*(norm for _, norm in parts))
    return whole, max(part / max(norm, 1e-12) for part, norm in parts)


def _run(kind: _Kind, out: Path, text: Path, *, place: str | None) -> RunFolder:
    """Train to the end, with one failure or with none."""
    is_limited = place == LIMIT
    settings = _settings(out, text, is_limited=is_limited)
    plan = _plan(kind, share=LIMIT_SHARE if is_limited else None)
    planted = None if place is None or is_limited else place
    if world_size(kind.strategy) == 1:
        with _planted_here(planted):
            run_alone(plan, settings, observer=quiet, next_plan=next_plan)
    else:
        group = Group(max_restarts=0, timeout_s=TIMEOUT_S, next_plan=next_plan)
        launch(plan, settings, group, observer=_observer(planted, out.with_suffix(".done")))
        assert planted is None or out.with_suffix(".done").exists()
    return read_run_folder(out)


@contextmanager
def _planted_here(place: str | None) -> Iterator[None]:
    if place is None:
        yield
        return
    name, step = place.split(":")
    plant = Plant(name, int(step))
    with phases.listening(plant.listen):
        yield
    assert plant.is_done


def _observer(place: str | None, done: Path) -> Callable[[], PlainObserver]:
    if place is None:
        return quiet
    name, step = place.split(":")
    return partial(planting, name, int(step), done)


def _settings(out: Path, text: Path, *, is_limited: bool) -> RunSettings:
    return plain_settings(
        out=out,
        data=text,
        cache=out.parent / "cache",
        checkpoint_every_steps=CHECKPOINT_EVERY,
        eval_every_steps=NUM_STEPS,
        num_eval_tokens=64,
        merge=True,
        enforces_limit=is_limited,
    )


def _plan(kind: _Kind, *, share: float | None) -> Plan:
    num_devices = world_size(kind.strategy)
    cluster = load_cluster(f"{num_devices}xlocal", memory_limit_bytes=None)
    if share is not None:
        peak = simulate(kind.job, cluster, kind.strategy).simulated_peak_allocated_bytes
        device = msgspec.structs.replace(cluster.device, usable_bytes=round(share * peak))
        cluster = msgspec.structs.replace(cluster, device=device)
    return Plan(
        schema=PLAN_SCHEMA, job=kind.job, cluster=cluster, strategy=kind.strategy, estimate=None
    )


def summarize(rows: list[LadderRow]) -> Summary:
    """Say which runs did not come to the end of the run in peace."""
    missed = [
        f"{row.place} over {world_size(row.case.strategy)}: {why}"
        for row in rows
        for why in _misses(row)
    ]
    worst = max(error for row in rows for _, error in _errors(row))
    tensor = max(row.tensor_error for row in rows)
    takeovers = sum(len(row.takeovers) for row in rows)
    in_place = sum(taken.in_place for row in rows for taken in row.takeovers)
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(),
        bars=(
            (
                f"every run comes to its last step, and its losses, its held-out loss and its "
                f"weights as a whole are within {BAR:g} of the run in peace"
            ),
        ),
        findings=(
            (
                f"largest difference {worst:.1e}, of a single tensor {tensor:.1e}; {takeovers} "
                f"strategies took over, {in_place} of them in place"
            ),
        ),
        missed=tuple(missed),
    )


def _errors(row: LadderRow) -> tuple[tuple[str, float], ...]:
    return (
        ("losses", row.loss_error),
        ("held-out losses", row.heldout_error),
        ("weights", row.weight_error),
    )


def _misses(row: LadderRow) -> Iterator[str]:
    if row.num_steps != NUM_STEPS:
        yield f"{row.num_steps} steps of {NUM_STEPS}"
    if not row.takeovers:
        yield "nothing took over"
    for name, error in _errors(row):
        if error > BAR:
            yield f"{name} differ by {error:.1e}"
