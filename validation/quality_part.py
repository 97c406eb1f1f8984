"""What cheaper ways to train cost in quality: each beside the plain way, from one trained start.

A small decoder is trained on the standard library's sources, once for this machine. From there
every way goes on with the prose of torch's manual, by ``train`` as users call it, in a run folder
each. The learning rate is that at which the *plain* way does best, with a seed of its own; what
stands beside it takes the same, so that nothing but the way differs.
"""

import contextlib
import hashlib
import io
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from cases import Case
from comparison_rows import Purpose, QualityRow
from evidence import Summary, relative, spread_of
from killed_part import weights_hash
from progress import shown
from sampler import cluster_of
from second_text import FEW_FILES, FILES, write_documents
from small_llama import SMALL_LLAMA

from brimful.build.assemble import build_program
from brimful.build.step import evaluate
from brimful.cost.estimate import estimate_or_none
from brimful.files.writing import cache_dir
from brimful.models.config import read_config
from brimful.process.versions import versions
from brimful.techniques.runnable import check_strategy
from brimful.train.data.corpus import fingerprint, load_corpus
from brimful.train.data.prepare import prepare
from brimful.train.data.source import as_source
from brimful.train.data.tokens import cached_folder
from brimful.train.loop import train
from brimful.train.metering import NullMeter
from brimful.train.observers import PlainObserver
from brimful.train.settings import plain_settings
from brimful.values.job import Adapter, Job, check_job, plain_job
from brimful.values.plan import PLAN_SCHEMA, Plan
from brimful.values.run_files import MODEL, TOKENS
from brimful.values.strategy import Strategy

GAP_BAR = 0.02
NUM_SEEDS = 3
STRATEGY = Strategy(micro_batch=8, activation_checkpointing="none", loss_chunks=1, attention="sdpa")
_NO_SAVES = 10**6
ADAPTER = Adapter(
    rank=8,
    alpha=16.0,
    targets=("all-linear",),
    trained_modules=(),
    dtype="same",
    base="same",
    upcast="none",
    input_requires_grad=False,
)
_NF4 = msgspec.structs.replace(ADAPTER, base="nf4-double")


class Way(NamedTuple):
    """A way to train: its name, what of the job differs, and the plain way it stands beside."""

    name: str
    changes: dict[str, Any]
    reference: str


WAYS = (
    Way("full", {}, "full"),
    Way("8-bit AdamW", {"optimizer": "adamw-8bit"}, "full"),
    Way("LoRA", {"method": "lora", "adapter": ADAPTER}, "LoRA"),
    Way("DoRA", {"method": "dora", "adapter": ADAPTER}, "LoRA"),
    Way("QLoRA", {"method": "qlora", "adapter": _NF4}, "LoRA"),
)
"""A plain way is its own reference; the others follow it."""
RATES = {"full": (2e-3, 4e-3, 8e-3), "LoRA": (6e-3, 1.2e-2, 2.4e-2)}


class Size(NamedTuple):
    """How large all of it is; ``first_text`` is a folder of the standard library, or all of it."""

    model: dict[str, int]
    first_text: str | None
    second_text: tuple[str, ...]
    num_first_steps: int
    num_steps: int
    seq_len: int
    num_eval_tokens: int
    num_seeds: int


FULL = Size(
    {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "vocab_size": 4096},
    first_text=None,
    second_text=FILES,
    num_first_steps=400,
    num_steps=60,
    seq_len=128,
    num_eval_tokens=32_768,
    num_seeds=NUM_SEEDS,
)
QUICK = Size(
    {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "vocab_size": 512},
    first_text="email",
    second_text=FEW_FILES,
    num_first_steps=40,
    num_steps=8,
    seq_len=64,
    num_eval_tokens=4096,
    num_seeds=2,
)


class Start(NamedTuple):
    """Where every run begins: a trained model, the second text, what it knows of it, and a cache.

    Attributes:
        size: How large.
        model: Folder of the model.
        weights: Hash of its weights.
        text: The second text.
        heldout_loss: On what is held out of it, before any step.
        cache: Folder of token files.
    """

    size: Size
    model: Path
    weights: str
    text: Path
    heldout_loss: float
    cache: Path


def run(*, seed: int, quick: bool) -> tuple[list[QualityRow], Summary]:
    """Train the start if this machine has none yet, choose rates, and compare."""
    rng = random.Random(seed)  # noqa: S311 - seeds of runs, not secrets
    size = QUICK if quick else FULL
    first, *seeds = rng.sample(range(1, 2**31), 1 + size.num_seeds)
    with tempfile.TemporaryDirectory() as folder:
        start = _start(size, Path(folder))
        tried = [
            _try(start, way, rate, first, "rate")
            for way, rate in shown("learning rates", _rates_to_try())
        ]
        rates = {name: best_rate(tried, name) for name in RATES}
        pairs = [(way, number) for number in seeds for way in WAYS]
        compared = [
            _try(start, way, rates[way.reference], number, "compared")
            for way, number in shown("quality", pairs)
        ]
    rows = [*tried, *_with_gaps(compared)]
    return rows, summarize(rows)


def _rates_to_try() -> list[tuple[Way, float]]:
    return [(way, rate) for way in WAYS for rate in RATES.get(way.name, ())]


def best_rate(rows: list[QualityRow], way: str) -> float:
    """Return the learning rate at which a plain way had the lowest held-out loss."""
    best = min((r for r in rows if r.way == way), key=lambda row: row.heldout_loss)
    return best.case.job.learning_rate


def _with_gaps(rows: list[QualityRow]) -> Iterator[QualityRow]:
    plain = {(row.way, row.case.job.seed): row.heldout_loss for row in rows}
    for row in rows:
        loss = plain[row.reference, row.case.job.seed]
        gap = None if row.way == row.reference else relative(row.heldout_loss, loss)
        yield msgspec.structs.replace(row, gap=gap)


def _start(size: Size, folder: Path) -> Start:
    """Find or train the start, and judge it on the second text."""
    cache = cache_dir() / TOKENS
    made = _trained_start(size, cache)
    text = folder / "manual.jsonl"
    write_documents(text, size.second_text)
    start = Start(size, made / MODEL, weights_hash(made), text, 0.0, cache)
    return start._replace(heldout_loss=_judged(start))


def _trained_start(size: Size, cache: Path) -> Path:
    """Return the run folder of the first training; its name is a hash of all that decides it."""
    job = check_job(_job(size, num_steps=size.num_first_steps, learning_rate=3e-3))
    data = None
    if size.first_text is not None:
        data = Path(contextlib.__file__).parent / size.first_text
    parts = (msgspec.json.encode((job, STRATEGY, versions())), fingerprint(load_corpus(data)))
    digest = hashlib.blake2b(parts[0] + parts[1].encode(), digest_size=8).hexdigest()

    def make(temporary: Path) -> None:
        _train(job, out=temporary / "run", data=data, cache=cache, size=size)
        # The checkpoints have served; the model is what is kept.
        (temporary / "run" / MODEL).rename(temporary / MODEL)

    def read(found: Path, _key: str) -> Path | None:
        return found if (found / MODEL / "config.json").is_file() else None

    return cached_folder(cache_dir() / "evidence", f"start-{digest}", make=make, read=read)[0]


def _job(size: Size, **changes: Any) -> Job:
    config = {"model_type": "llama", **SMALL_LLAMA, **size.model}
    num_steps = changes["num_steps"]
    fields: dict[str, Any] = {
        "seq_len": size.seq_len,
        "global_batch": STRATEGY.micro_batch,
        "warmup_steps": num_steps // 10,
        "seed": 0,
    }
    return plain_job(read_config("small", config), **{**fields, **changes})


def _judged(start: Start) -> float:
    """Return the held-out loss before any step."""
    job = _fine_tuned(start, WAYS[0], 1e-3, 0)
    prepared = prepare(
        as_source(start.text),
        job,
        micro_batch=STRATEGY.micro_batch,
        cache=start.cache,
        num_eval_tokens=start.size.num_eval_tokens,
    )
    program = build_program(job, STRATEGY, torch.device("cpu"))
    return float(evaluate(program, prepared.heldout))


def _fine_tuned(start: Start, way: Way, rate: float, seed: int) -> Job:
    fields = {"num_steps": start.size.num_steps, "learning_rate": rate, "seed": seed}
    return check_job(_job(start.size, **fields, weights=str(start.model), **way.changes))


def _try(start: Start, way: Way, rate: float, seed: int, purpose: Purpose) -> QualityRow:
    """Train once and keep the held-out loss; the run's folder is thrown away."""
    job, began_s = _fine_tuned(start, way, rate, seed), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        loss = _train(
            job, out=Path(folder) / "run", data=start.text, cache=start.cache, size=start.size
        )
    return QualityRow(
        # Where the start lies is this machine's own business; its hash says which it is.
        case=Case(job=msgspec.structs.replace(job, weights=None), strategy=STRATEGY, kernels="cpu"),
        way=way.name,
        reference=way.reference,
        purpose=purpose,
        start=start.weights[:16],
        start_loss=start.heldout_loss,
        heldout_loss=loss,
        gap=None,
        wall_s=round(time.perf_counter() - began_s, 1),
    )


def _train(job: Job, *, out: Path, data: Path | None, cache: Path, size: Size) -> float:
    """Train as ``brimful train`` does, and return the last held-out loss."""
    cluster = cluster_of("cpu")
    strategy = check_strategy(job, STRATEGY)
    plan = Plan(
        schema=PLAN_SCHEMA,
        job=job,
        cluster=cluster,
        strategy=strategy,
        estimate=estimate_or_none(job, cluster, strategy),
    )
    settings = plain_settings(
        out=out,
        data=data,
        cache=cache,
        checkpoint_every_steps=_NO_SAVES,
        eval_every_steps=_NO_SAVES,
        num_eval_tokens=size.num_eval_tokens,
    )
    result = train(plan, settings, observer=PlainObserver(io.StringIO()), meter=NullMeter())
    if result.interrupted:
        # ``train`` ends in peace; half a run must not be kept as a start, nor count as a row.
        raise KeyboardInterrupt
    assert result.heldout_loss is not None
    return result.heldout_loss


def summarize(rows: list[QualityRow]) -> Summary:
    """Sum up, and say which ways lose more than the bar allows."""
    compared = [row for row in rows if row.purpose == "compared"]
    gaps = {
        way.name: [row.gap for row in compared if row.way == way.name and row.gap is not None]
        for way in WAYS
        if way.name != way.reference
    }
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=tuple(spread_of(name, found) for name, found in gaps.items()),
        bars=(
            f"held-out loss at most {GAP_BAR:.0%} above the plain way's: mean of the seeds",
            "at the plain way's best learning rate",
        ),
        missed=tuple(
            f"{name}: mean gap {statistics.fmean(found):+.2%}"
            for name, found in gaps.items()
            if statistics.fmean(found) > GAP_BAR
        ),
        findings=tuple(_finding(way, compared) for way in WAYS),
    )


def _finding(way: Way, compared: list[QualityRow]) -> str:
    """Say in a line what a way reached, with the spread over its seeds."""
    own = [row for row in compared if row.way == way.name]
    gaps = [row.gap for row in own if row.gap is not None]
    loss = statistics.fmean(row.heldout_loss for row in own)
    rate = own[0].case.job.learning_rate
    said = f"{way.name}: held-out loss {own[0].start_loss:.3f} -> {loss:.4f} at rate {rate:g}"
    if not gaps:
        losses = [row.heldout_loss for row in own]
        return f"{said} (std {statistics.stdev(losses):.4f})"
    return (
        f"{said}, {statistics.fmean(gaps):+.2%} of {way.reference} "
        f"({min(gaps):+.2%} to {max(gaps):+.2%}, std {statistics.stdev(gaps):.2%})"
    )
