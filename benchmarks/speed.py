"""How fast Brimful answers, against its budgets: ``python benchmarks/speed.py [--json FILE]``.

Every figure is the best of several runs, each in a fresh process: what other programs take from
this machine only ever makes a run slower. Exit code 1: a bar was missed, or estimate imports torch.
"""

import argparse
import datetime as dt
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from brimful.files.writing import write_bytes
from brimful.process.versions import versions
from brimful.units import format_seconds

SPEED_SCHEMA = "brimful.speed/1"
BRIMFUL = [sys.executable, "-m", "brimful"]
JOB = [
    "llama-3.1-8b", "--gpus", "h200", "--precision", "bf16", "--seq-len", "4096",
]  # fmt: skip
ON_64 = ["llama-3.1-8b", "--gpus", "8x8xh100-80gb", "--seq-len", "8192", "--global-batch", "256"]
MARKET = ["llama-3.1-8b", "--tokens", "1B"]
ON_1024 = [
    "llama-3.1-405b", "--gpus", "128x8xh100-80gb", "--seq-len", "8192", "--global-batch", "1024",
]  # fmt: skip
ROW = [
    "--global-batch", "128", "--micro-batch", "1", "--zero", "3", "--accumulate", "hold",
    "--dp-shard", "8", "--tp", "8", "--pp", "16",
]  # fmt: skip
"""FSDP x TP x PP with 16 micro-batches on 16 stages; ``ON_1024``'s batch is given anew."""
PLACES = {"first": 0, "middle": 8, "last": 15}
"""Classes of devices that do different work, and a place in the row of each."""
TIMEOUT_S = 120

_IMPORT = """
import time
start_s = time.perf_counter()
import brimful
print(time.perf_counter() - start_s)
"""
_SIMULATE = f"""
import time
from brimful.cli.resolved import asked
from brimful.cli.main import parser_of
from brimful.process.library_output import quiet_libraries
quiet_libraries()
from brimful.simulate.run import simulate
job = asked(parser_of("simulate").parse_args({JOB!r}))
start_s = time.perf_counter()
simulate(*job)
print(time.perf_counter() - start_s)
"""
_RANK_CLASS = f"""
import time
from brimful.cli.resolved import asked
from brimful.cli.main import parser_of
from brimful.process.library_output import quiet_libraries
quiet_libraries()
from brimful.simulate.run import simulate
from brimful.values.strategy import stage_rank
job = asked(parser_of("simulate").parse_args({[*ON_1024, *ROW]!r}))
start_s = time.perf_counter()
simulate(*job, rank=stage_rank(job[2], PLACE))
print(time.perf_counter() - start_s)
"""
_SEARCH = """
import time
from brimful.hardware.gpus import load_cluster
from brimful.values.job import plain_job
from brimful.models.config import load_model
from brimful.search.solve import tabulate
from brimful.search.space import Pins, grids
model = load_model("llama-3.1-405b")
cluster = load_cluster("720x8xh100-80gb", memory_limit_bytes=None)
job = plain_job(model, precision="bf16-mixed", seq_len=4096, global_batch=720 * cluster.num_devices)
start_s = time.process_time()
space = grids(job, Pins(), attention="sdpa", cluster=cluster)
table = tabulate(job, cluster, "sdpa", space)
print((time.process_time() - start_s) / len(table.fits) * 1e6)
"""
"""Millions of strategies: counts of blocks, micro-batches, chunks, stages and shards; one core."""
_MODULES = f"""
import contextlib, io, sys
from brimful.cli.main import main
with contextlib.redirect_stdout(io.StringIO()):
    assert main(["estimate", *{JOB!r}]) == 0
heavy = sorted(name for name in sys.modules if name.partition(".")[0] == "torch")
assert not heavy, f"estimate imports {{heavy[0]}}"
print(len(sys.modules))
"""


class Figure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One budget and what was measured; ``bar`` is None where a figure is only watched."""

    name: str
    unit: str
    bar: float | None
    measured_best: float
    measured_all: tuple[float, ...]


class Speed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run of this file: what, where, when, with which versions, and how it was started."""

    schema: str
    theme: str
    hardware: str
    month: str
    versions: tuple[str, ...]
    command: str
    load_average: float
    figures: tuple[Figure, ...]


class Benchmark(NamedTuple):
    """A figure to be measured: ``measure`` runs once and returns it."""

    name: str
    unit: str
    bar: float | None
    num_runs: int
    measure: Callable[[], float]


def main() -> int:
    """Measure, print, and store where asked."""
    parser = argparse.ArgumentParser(description="measure the budgets of the command line")
    parser.add_argument("--json", type=Path, default=None, help="write the figures as one row")
    parser.add_argument("--only", default="", help="figures with this in their names")
    parser.add_argument("--runs", type=int, default=0, help="runs per figure (default: its own)")
    args = parser.parse_args()
    load_average = os.getloadavg()[0]  # of before: this file loads the machine too
    chosen = (benchmark for benchmark in benchmarks() if args.only in benchmark.name)
    figures = tuple(figure_of(benchmark, args.runs) for benchmark in chosen)
    speed = speed_of(figures, "speed of the command line", load_average)
    print("\n".join(lines(speed)))
    if args.json is not None:
        write_bytes(args.json, msgspec.json.encode(speed) + b"\n")
    return 1 if any(_missed(figure) for figure in figures) else 0


def benchmarks() -> tuple[Benchmark, ...]:
    """List what is measured, with its bar."""
    return (
        Benchmark("import brimful", "s", 0.1, 7, lambda: printed(_IMPORT)),
        Benchmark("brimful estimate, command", "s", 0.3, 7, lambda: _command_s("estimate")),
        Benchmark("brimful plan 8B, command", "s", 2.0, 5, lambda: _command_s("plan")),
        Benchmark("plan 8B on 64, command", "s", 2.0, 5, lambda: _command_s("plan", ON_64)),
        Benchmark("plan 405B on 1024, command", "s", 5.0, 5, lambda: _command_s("plan", ON_1024)),
        Benchmark("shop for 8B, command", "s", 10.0, 3, lambda: _command_s("shop", MARKET)),
        Benchmark("a million strategies, one core", "s", 1.0, 3, lambda: printed(_SEARCH)),
        Benchmark("simulate 8B, in-process", "s", 1.5, 3, lambda: printed(_SIMULATE)),
        *(_rank_class(name, place) for name, place in PLACES.items()),
        Benchmark("modules in estimate, no torch", "", None, 1, lambda: printed(_MODULES)),
    )


def _rank_class(name: str, place: int) -> Benchmark:
    code = _RANK_CLASS.replace("PLACE", str(place))
    return Benchmark(f"405B dp8 tp8 pp16, {name} stage", "s", 5.0, 3, lambda: printed(code))


def figure_of(benchmark: Benchmark, num_runs: int) -> Figure:
    figures = [benchmark.measure() for _ in range(num_runs or benchmark.num_runs)]
    return Figure(
        name=benchmark.name,
        unit=benchmark.unit,
        bar=benchmark.bar,
        measured_best=min(figures),
        measured_all=tuple(figures),
    )


def _command_s(verb: str, job: list[str] = JOB) -> float:
    """Return the wall time of a whole command, Python's own start included."""
    start_s = time.perf_counter()
    _run([*BRIMFUL, verb, *job], answers=(0, 1))  # 1: planned, and it does not fit
    return time.perf_counter() - start_s


def printed(code: str) -> float:
    """Return the number that a fresh Python prints."""
    return float(_run([sys.executable, "-c", code]).splitlines()[-1])


def _run(command: list[str], *, answers: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(  # noqa: S603 - this Python and our own code
        command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode not in answers:
        raise SystemExit(f"{shlex.join(command[:4])}: {(done.stderr.strip() or 'failed')[-400:]}")
    return done.stdout


def speed_of(figures: tuple[Figure, ...], theme: str, load_average: float) -> Speed:
    from brimful.hardware.probe import probe_local

    return Speed(
        schema=SPEED_SCHEMA,
        theme=theme,
        hardware=probe_local().description,
        month=f"{dt.datetime.now(dt.UTC):%Y-%m}",
        versions=versions(),
        command=shlex.join(["python", *sys.argv]),
        load_average=load_average,
        figures=figures,
    )


def _missed(figure: Figure) -> bool:
    return figure.bar is not None and figure.measured_best > figure.bar


def lines(speed: Speed) -> list[str]:
    """Return the table."""
    head = f"{speed.hardware}, {speed.month}, load average {speed.load_average:.1f} beforehand"
    return [
        head,
        ", ".join(speed.versions),
        f"{'':32s}{'bar':>10s}{'best':>10s}{'worst':>10s}{'runs':>6s}",
        *(_line(figure) for figure in speed.figures),
    ]


def _line(figure: Figure) -> str:
    spell = format_seconds if figure.unit == "s" else (lambda value: f"{value:.0f}")
    bar = "-" if figure.bar is None else spell(figure.bar)
    best, worst = spell(figure.measured_best), spell(max(figure.measured_all))
    missed = "  missed" if _missed(figure) else ""
    runs = len(figure.measured_all)
    return f"{figure.name:32s}{bar:>10s}{best:>10s}{worst:>10s}{runs:>6d}{missed}"


if __name__ == "__main__":
    raise SystemExit(main())
