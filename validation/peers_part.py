"""Our trainer beside Hugging Face's (and PEFT): in pairs of runs of one job, then each at its best.

Same weights, rows, order, types, optimizer, clip, schedule, micro-batch, accumulation and
checkpointing; a process for each run, the same threads, ours and theirs by turns (A B B A). Then
one limit of memory: what ``plan`` chooses here against the fastest of a grid of the peer's settings
that stays below it.
"""

import contextlib
import math
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import peer_worker
from cases import Case
from comparison_rows import PeerRow, PeerTry
from evidence import Summary, describe_case, relative, spread_of
from peer_site import Site, make_site
from peer_worker import NUM_METERED_STEPS, Answer, Request, Trainer, ask
from progress import shown
from provenance import Watch
from small_llama import SMALL_LLAMA

from brimful.errors import RunError
from brimful.hardware.cluster import Cluster
from brimful.hardware.gpus import load_cluster
from brimful.hardware.probe import probe_local
from brimful.models.config import read_config
from brimful.search.pins import Pins, micro_batches
from brimful.search.solve import solve
from brimful.techniques.runnable import check_strategy
from brimful.units import MIB, format_bytes
from brimful.values.job import Adapter, Job, check_job, plain_job
from brimful.values.strategy import Strategy

SPEED_BAR, PEAK_BAR = 0.97, 1.02
LOSS_BAR = {"fp32": 1e-4, "bf16-mixed": 1e-2}
"""How far apart the losses of a step may be: else it is not the same mathematics that is timed."""
QUIET_LOAD = 0.1
"""Beyond this share of the CPU, other programs disturb what is timed."""
ADAPTER = Adapter(
    rank=16,
    alpha=32.0,
    targets=("all-linear",),
    trained_modules=(),
    dtype="fp32",
    base="bf16",
    upcast="none",
    input_requires_grad=False,
)
_LORA = {"method": "lora", "adapter": ADAPTER}
_FREE = Pins(None, None, None)


class Setting(NamedTuple):
    """What differs between cases; ``batches`` are those of a step and of a forward pass."""

    name: str
    changes: dict[str, Any]
    batches: tuple[int, int]
    checkpointing: str


SETTINGS = (
    Setting("full fp32", {"precision": "fp32"}, (8, 8), "none"),
    Setting("full fp32, checkpointed", {"precision": "fp32"}, (8, 4), "full"),
    Setting("full bf16 autocast", {"precision": "bf16-mixed"}, (8, 8), "none"),
    Setting("full bf16 autocast, checkpointed", {"precision": "bf16-mixed"}, (8, 4), "full"),
    Setting("LoRA bf16", {"precision": "bf16-mixed", **_LORA}, (8, 8), "none"),
    Setting("LoRA bf16, checkpointed", {"precision": "bf16-mixed", **_LORA}, (8, 4), "full"),
)


class Size(NamedTuple):
    """How large and how often; ``text`` is a folder of the standard library, or all of it."""

    model: dict[str, int]
    text: str | None
    seq_len: int
    num_steps: int
    num_pairs: int
    best_batch: int
    limit_bytes: int


FULL = Size(
    {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 6, "vocab_size": 8192},
    text=None,
    seq_len=128,
    num_steps=14,
    num_pairs=4,
    best_batch=16,
    limit_bytes=448 * MIB,
)
QUICK = Size(
    {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 3, "vocab_size": 512},
    text="email",
    seq_len=64,
    num_steps=5,
    num_pairs=2,
    best_batch=4,
    limit_bytes=24 * MIB,
)


class Pair(NamedTuple):
    """Both trainers' runs of one kind."""

    ours: Answer
    theirs: Answer


class Sides(NamedTuple):
    """What each trainer runs: the same case, or each its best."""

    ours: Case
    theirs: Case


class Bench(NamedTuple):
    """Where and how large."""

    site: Site
    size: Size


def run(*, seed: int, quick: bool) -> tuple[list[PeerRow], Summary]:
    """Compare at the same settings, then each at its best; the seed is that of weights and data."""
    size = QUICK if quick else FULL
    settings = (SETTINGS[0], SETTINGS[-1]) if quick else SETTINGS
    text = None if size.text is None else Path(contextlib.__file__).parent / size.text
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Site(Path(folder) / "site", text), size)
        rows = [compare(bench, case_of(size, setting, seed)) for setting in shown("same", settings)]
        rows += [_best_against_best(bench, seed)]
    return rows, summarize(rows)


def case_of(size: Size, setting: Setting, seed: int) -> Case:
    """Return the case of a setting at a size; the seed is that of weights and data."""
    global_batch, micro_batch = setting.batches
    job = _job(size, global_batch=global_batch, seed=seed % 2**31, **setting.changes)
    strategy = Strategy(
        micro_batch=micro_batch,
        activation_checkpointing=setting.checkpointing,
        loss_chunks=1,
        attention="sdpa",
    )
    return Case(job=job, strategy=check_strategy(job, strategy), kernels="cpu")


def _job(size: Size, **changes: Any) -> Job:
    config = {"model_type": "llama", **SMALL_LLAMA, **size.model}
    fields = {"seq_len": size.seq_len, "num_steps": size.num_steps, "schedule": "linear"}
    return check_job(
        plain_job(read_config("small", config), **{**fields, "learning_rate": 3e-4, **changes})
    )


def compare(bench: Bench, case: Case) -> PeerRow:
    """Run both trainers at the same settings."""
    made = make_site(bench.site, case)
    watch = Watch()
    sides = Sides(made, made)
    row = _row(bench, sides, watch)
    return msgspec.structs.replace(row, case=case)


def _row(bench: Bench, sides: Sides, watch: Watch) -> PeerRow:
    metered = Pair(*(_ask(bench, name, case, metered=True) for name, case in _named(sides)))
    pairs = list(_pairs(bench, sides))
    speeds = [
        (pair.ours.tokens_per_s(sides.ours), pair.theirs.tokens_per_s(sides.theirs))
        for pair in pairs
    ]
    first = pairs[0]
    return PeerRow(
        case=sides.ours,
        settings="same",
        peer=peer_worker.describe(sides.theirs),
        limit_bytes=None,
        num_threads=first.ours.num_threads,
        tokens_per_s=tuple(ours for ours, _ in speeds),
        peer_tokens_per_s=tuple(theirs for _, theirs in speeds),
        speed_ratio=statistics.median(ours / theirs for ours, theirs in speeds),
        measured_peak_bytes=metered.ours.measured_peak_bytes,
        peer_peak_bytes=metered.theirs.measured_peak_bytes,
        peak_ratio=metered.ours.measured_peak_bytes / metered.theirs.measured_peak_bytes,
        process_bytes=first.ours.process_bytes,
        peer_process_bytes=first.theirs.process_bytes,
        loss_error=farthest(first.ours.losses, first.theirs.losses),
        norm_error=farthest(first.ours.norms, first.theirs.norms),
        others_load=round(watch.others_load(), 3),
        grid=(),
    )


def farthest(ours: tuple[float, ...], theirs: tuple[float, ...]) -> float:
    """Return the largest relative difference of two curves of one length; Inf if one has a hole."""
    errors = [abs(relative(one, other)) for one, other in zip(ours, theirs, strict=True)]
    return max(errors) if all(map(math.isfinite, errors)) else math.inf


def _named(sides: Sides) -> Iterator[tuple[Trainer, Case]]:
    yield "ours", sides.ours
    yield "hf", sides.theirs


def _pairs(bench: Bench, sides: Sides) -> Iterator[Pair]:
    """Run pairs, every second one in the other order: whatever drifts falls on both alike."""
    for number in range(bench.size.num_pairs):
        if number % 2:
            theirs = _ask(bench, "hf", sides.theirs)
            yield Pair(_ask(bench, "ours", sides.ours), theirs)
        else:
            ours = _ask(bench, "ours", sides.ours)
            yield Pair(ours, _ask(bench, "hf", sides.theirs))


def _ask(bench: Bench, trainer: Trainer, case: Case, *, metered: bool = False) -> Answer:
    num_steps = NUM_METERED_STEPS if metered else bench.size.num_steps
    job = msgspec.structs.replace(case.job, num_steps=num_steps)
    text = bench.site.text
    return ask(
        Request(
            trainer=trainer,
            case=msgspec.structs.replace(case, job=job),
            folder=str(bench.site.folder),
            text=None if text is None else str(text),
            metered=metered,
        )
    )


def _best_against_best(bench: Bench, seed: int) -> PeerRow:
    """Plan ours under the limit, try the peer's grid, and compare the two that are best."""
    size = bench.size
    job = _job(size, global_batch=size.best_batch, seed=seed % 2**31, precision="fp32")
    planned = solve(job, _local(size.limit_bytes), _FREE, attention="sdpa", objective="time").plan
    case = Case(job=job, strategy=planned.strategy, kernels="cpu")
    made = make_site(bench.site, case)
    watch = Watch()
    tried = [_try(bench, spelled) for spelled in shown("grid", list(_grid(made)))]
    best = _fastest(tried, size.limit_bytes)
    row = _row(bench, Sides(made, _spelled(made, best.micro_batch, best.checkpointing)), watch)
    return msgspec.structs.replace(
        row, case=case, settings="best", limit_bytes=size.limit_bytes, grid=tuple(tried)
    )


def _local(limit_bytes: int) -> Cluster:
    """Return this machine, with measured rates, so that the plan's times mean something."""
    if not probe_local().calibrated:
        from brimful.measure.calibrate import calibrate

        calibrate(probe_local(), on_progress=lambda _what, _share: None)
    return load_cluster("local", memory_limit_bytes=limit_bytes)


def _grid(case: Case) -> Iterator[Case]:
    """Yield the peer's settings: every micro-batch, with checkpointing and without."""
    for micro_batch in micro_batches(case.job, _FREE):
        for checkpointing in (False, True):
            yield _spelled(case, micro_batch, checkpointing)


def _spelled(case: Case, micro_batch: int, checkpointing: bool) -> Case:  # noqa: FBT001 - as PeerTry
    strategy = Strategy(
        micro_batch=micro_batch,
        activation_checkpointing="full" if checkpointing else "none",
        loss_chunks=1,
        attention="sdpa",
    )
    return msgspec.structs.replace(case, strategy=strategy)


def _try(bench: Bench, case: Case) -> PeerTry:
    """Meter one setting of the peer's, and time it where it stays below the limit."""
    peak_bytes = _ask(bench, "hf", case, metered=True).measured_peak_bytes
    speed = None
    if peak_bytes <= bench.size.limit_bytes:
        speed = _ask(bench, "hf", case).tokens_per_s(case)
    return PeerTry(
        micro_batch=case.strategy.micro_batch,
        checkpointing=case.strategy.activation_checkpointing != "none",
        measured_peak_bytes=peak_bytes,
        tokens_per_s=speed,
    )


def _fastest(tried: list[PeerTry], limit_bytes: int) -> PeerTry:
    """Return the fastest setting that stays below the limit.

    Raises:
        RunError: None does.
    """
    fitting = [t for t in tried if t.tokens_per_s is not None]
    if not fitting:
        least = min(t.measured_peak_bytes for t in tried)
        raise RunError(
            f"none of the peer's {len(tried)} settings is below {format_bytes(limit_bytes)}: the "
            f"smallest peak is {format_bytes(least)}; raise limit_bytes"
        )
    return max(fitting, key=lambda t: t.tokens_per_s or 0.0)


def summarize(rows: list[PeerRow]) -> Summary:
    """Sum up, and say what misses a bar; disturbed times count as missed."""
    same = [row for row in rows if row.settings == "same"]
    load = max(row.others_load for row in rows)
    disturbed = [f"disturbed: others used up to {load:.0%} of the CPU; make it again"]
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(
            spread_of("tokens/s", [row.speed_ratio - 1 for row in same]),
            spread_of("peak", [row.peak_ratio - 1 for row in same]),
            spread_of("loss", [row.loss_error for row in same]),
        ),
        bars=(
            f"tokens/s at least {SPEED_BAR} x and peak at most {PEAK_BAR} x the peer's",
            "the same losses",
            f"others using at most {QUIET_LOAD:.0%} of the CPU",
        ),
        missed=(
            *(text for row in rows for text in _misses(row)),
            *(disturbed if load > QUIET_LOAD else ()),
        ),
        findings=tuple(map(_finding, rows)),
    )


def _misses(row: PeerRow) -> Iterator[str]:
    case = describe_case(row.case)
    if row.speed_ratio < SPEED_BAR:
        yield f"{row.speed_ratio:.3f} x the peer's tokens/s: {case}"
    if row.settings == "best":
        # Both may use all of the limit: there the speeds are compared.
        assert row.limit_bytes is not None
        if row.measured_peak_bytes > row.limit_bytes:
            yield f"peak {format_bytes(row.measured_peak_bytes)} is above the limit: {case}"
        return
    if row.peak_ratio > PEAK_BAR:
        yield f"{row.peak_ratio:.3f} x the peer's peak: {case}"
    if row.loss_error > LOSS_BAR[row.case.job.precision]:
        yield f"losses differ by {row.loss_error:.1e}: {case}"


def _finding(row: PeerRow) -> str:
    """Say in a line how the two compare."""
    strategy, job = row.case.strategy, row.case.job
    ours, theirs = map(statistics.median, (row.tokens_per_s, row.peer_tokens_per_s))
    what = (
        f"{job.method} {job.precision} {strategy.micro_batch} {strategy.activation_checkpointing}"
    )
    if row.settings == "best":
        what = f"best under {format_bytes(row.limit_bytes or 0)}: {what}/{strategy.loss_chunks}"
    return (
        f"{what}: {ours:.0f} against {theirs:.0f} tokens/s ({row.speed_ratio:.3f} x), peak "
        f"{format_bytes(row.measured_peak_bytes)} against {format_bytes(row.peer_peak_bytes)} "
        f"({row.peak_ratio:.3f} x), loss {row.loss_error:.0e}"
    )
