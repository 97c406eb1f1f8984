"""How evidence was made: commit, machine, and who else was using it."""

import datetime as dt
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import torch
from evidence import Machine, Provenance

from brimful.hardware.probe import host_ram_bytes, probe_local
from brimful.versions import versions

ROOT = Path(__file__).parents[1]


class Watch:
    """Takes the time, and watches how much of the CPU programs other than ours use."""

    def __init__(self) -> None:
        """Begin now."""
        self._start_s = time.perf_counter()
        self._start_cpu_s = _cpu_s()

    def wall_s(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self._start_s

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
    return Provenance(
        commit=_git("rev-parse", "HEAD"),
        is_dirty=bool(_git("status", "--porcelain", "--untracked-files=no")),
        versions=versions(),
        date=dt.datetime.now(dt.UTC).date().isoformat(),
        machine=Machine(
            cpu=probe_local().description,
            num_cores=os.cpu_count() or 1,
            num_threads=torch.get_num_threads(),
            ram_bytes=host_ram_bytes(),
        ),
        seed=seed,
        command=" ".join(["python", *sys.argv]),
        wall_s=round(watch.wall_s(), 1),
        others_load=round(watch.others_load(), 3),
    )


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - fixed
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
