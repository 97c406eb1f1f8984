"""How evidence was made: commit, machine, and who else was using it."""

import datetime as dt
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
import torch
from evidence import Machine, Provenance

from brimful.hardware.probe import host_ram_bytes, probe_local
from brimful.process.versions import versions

ROOT = Path(__file__).parents[1]
_NO_INPUTS = (":(exclude)validation/*.json", ":(exclude)validation/README.md")
"""What a proof writes: it may differ from the commit, or the second part would never be clean."""


class Tree(NamedTuple):
    """The sources that evidence is made from.

    Attributes:
        commit: Of HEAD; ``unknown`` where there is no git.
        changed: Files that are not as they are there, new ones too; but for evidence.
    """

    commit: str
    changed: tuple[str, ...]


def tree() -> Tree:
    """Look at the sources."""
    status = _git("status", "--porcelain", "--untracked-files=all", "--", ".", *_NO_INPUTS)
    return Tree(_git("rev-parse", "HEAD"), tuple(line[2:].strip() for line in status.splitlines()))


class Watch:
    """Takes the time, and watches the sources and how much of the CPU other programs use."""

    def __init__(self) -> None:
        """Begin now."""
        self._tree = tree()
        self._start_s = time.perf_counter()
        self._start_cpu_s = _cpu_s()

    def wall_s(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self._start_s

    def tree(self) -> Tree:
        """Return the sources at the start, with all files that changed then or since."""
        now = tree()
        moved = () if now.commit == self._tree.commit else ("HEAD",)
        return Tree(self._tree.commit, (*self._tree.changed, *now.changed, *moved))

    def others_load(self) -> float:
        """Return the share of the machine's CPU that others used since the start, 0 to 1."""
        total_s, busy_s, own_s = (
            now - then for now, then in zip(_cpu_s(), self._start_cpu_s, strict=True)
        )
        return min(1.0, max(0.0, busy_s - own_s) / total_s) if total_s > 0 else 0.0


def _cpu_s() -> tuple[float, float, float]:
    """Read the machine's CPU seconds, the busy ones, and ours with those of ended children."""
    times, own = psutil.cpu_times(), psutil.Process().cpu_times()
    idle_s = float(times.idle + getattr(times, "iowait", 0.0))
    own_s = own.user + own.system + own.children_user + own.children_system
    return float(sum(times)), float(sum(times)) - idle_s, float(own_s)


def provenance(watch: Watch, *, seed: int) -> Provenance:
    """Say how the evidence that was made since the watch began was made."""
    sources = watch.tree()
    return Provenance(
        commit=sources.commit,
        is_dirty=bool(sources.changed),
        versions=versions(),
        date=dt.datetime.now(dt.UTC).date().isoformat(),
        machine=Machine(
            cpu=probe_local().description,
            num_cores=os.cpu_count() or 1,
            num_threads=torch.get_num_threads(),
            ram_bytes=host_ram_bytes(),
        ),
        seed=seed,
        command=" ".join(["python", *without_folder(sys.argv)]),
        wall_s=round(watch.wall_s(), 1),
        others_load=round(watch.others_load(), 3),
    )


def without_folder(arguments: Sequence[str]) -> list[str]:
    """Leave out where evidence is written: it is of one machine and changes nothing that is made.

    Args:
        arguments: As typed.
    """
    left = list(arguments)
    if "--out" in left:
        place = left.index("--out")
        del left[place : place + 2]
    return [argument for argument in left if not argument.startswith("--out=")]


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - fixed
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
