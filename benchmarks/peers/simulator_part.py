"""The pretend GPU beside PyTorch's MemTracker: the same programs, a fresh process for every run."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from peer_rows import SimulatorRow
from progress import shown
from simulator_programs import PROGRAMS, QUICK, Program

WORKER = Path(__file__).parent / "simulator_worker.py"
TIMEOUT_S = 400
NUM_RUNS = {"pretend": 2, "simulate": 3, "mem_tracker": 2, "real": 1}
TWICE = ("Llama 3.1 8B", "Llama 3.2 1B")
"""Programs that MemTracker is asked of more than once: it takes long."""


class Told(NamedTuple):
    """What a process said: figures, or why it failed."""

    figures: dict[str, Any] | None
    reason: str


def run(*, quick: bool, partial: Path) -> tuple[list[SimulatorRow], tuple[str, ...], list[str]]:
    """Run every program under every tool that can be asked; returns rows and no more.

    Args:
        quick: Two programs, once.
        partial: Keeps the rows of programs that are done; what it holds is not run again.
    """
    names = QUICK if quick else tuple(PROGRAMS)
    done = _read(partial)
    rows = []
    for name in shown("simulators", names):
        new = [] if name in done else list(_rows(name, quick=quick))
        with partial.open("ab") as kept:
            kept.writelines(msgspec.json.encode(row) + b"\n" for row in new)
        rows += done.get(name, new)
    return rows, (), []


def _read(partial: Path) -> dict[str, list[SimulatorRow]]:
    found: dict[str, list[SimulatorRow]] = {}
    lines = partial.read_bytes().splitlines() if partial.is_file() else []
    for row in (msgspec.json.decode(line, type=SimulatorRow) for line in lines):
        found.setdefault(row.program, []).append(row)
    return found


def _rows(name: str, *, quick: bool) -> Iterator[SimulatorRow]:
    for tool in _tools(PROGRAMS[name]):
        slow = tool == "mem_tracker" and name not in TWICE
        yield _row(name, tool, 1 if quick or slow else NUM_RUNS[tool])


def _tools(program: Program) -> list[str]:
    asked = {"simulate": bool(program.flags), "real": program.is_small}
    return [tool for tool in NUM_RUNS if asked.get(tool, True)]


def _row(name: str, tool: str, num_runs: int) -> SimulatorRow:
    told = [_ask(name, tool)]
    while told[-1].figures and len(told) < num_runs:
        told.append(_ask(name, tool))
    figures = [each.figures for each in told if each.figures]
    if not figures:
        return SimulatorRow(program=name, tool=tool, reason=told[-1].reason)  # type: ignore[arg-type]
    return SimulatorRow(
        program=name,
        tool=tool,  # type: ignore[arg-type]
        wall_s=tuple(round(each["wall_s"], 3) for each in figures),
        cpu_s=tuple(round(each["cpu_s"], 3) for each in figures),
        rss_bytes=figures[0]["rss_bytes"],
        peak_bytes=figures[0]["peak_bytes"],
    )


def _ask(name: str, tool: str) -> Told:
    command = [sys.executable, str(WORKER), tool, name]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(  # noqa: S603 - our own file
            command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, env=one_thread
        )
    except subprocess.TimeoutExpired:
        return Told(None, f"more than {TIMEOUT_S} s")
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
        return Told(None, said[-1][:160])
    return Told(json.loads(done.stdout.splitlines()[-1]), "")
