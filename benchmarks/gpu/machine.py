"""What a row says about where it was made: GPU, driver, commit. Imports no torch."""

import contextlib
import os
import platform
import re
import shutil
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

from brimful.units import MIB

ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT_S = 20


def _answer(command: list[str]) -> str:
    """Return what a command prints; nothing where it is missing, fails or hangs."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(  # noqa: S603 - fixed commands
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True, cwd=ROOT
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def gpu_query(field: str) -> str:
    """Ask the driver for fields of the GPU; empty where there is none."""
    first = (os.environ.get("CUDA_VISIBLE_DEVICES") or "0").split(",")[0].strip()
    query = [f"--query-gpu={field}", "--format=csv,noheader,nounits", f"--id={first}"]
    return _answer(["nvidia-smi", *query])


@cache
def driver() -> str:
    """Return the version of the GPU's driver; empty where there is none."""
    return gpu_query("driver_version")


def gpu_used_bytes() -> int:
    """Return the bytes in use on the GPU, by whomever."""
    used = gpu_query("memory.used")
    return int(used) * MIB if used.isdecimal() else 0


def gpu_process_bytes(pid: int) -> int | None:
    """Return the bytes of one process on the GPU; None where the driver does not show it."""
    query = ["--query-compute-apps=pid,used_gpu_memory", "--format=csv,noheader,nounits"]
    for line in _answer(["nvidia-smi", *query]).splitlines():
        shown, _, used = (part.strip() for part in line.partition(","))
        if shown == str(pid) and used.isdecimal():
            return int(used) * MIB
    return None


@cache
def commit() -> str:
    """Return the commit of this checkout, ``-dirty`` where files differ; ``unknown`` without git.

    ``$BRIMFUL_COMMIT`` overrules it, for copies of a checkout that have no history.
    """
    if given := os.environ.get("BRIMFUL_COMMIT"):
        return given
    head = _answer(["git", "rev-parse", "HEAD"])
    if not head:
        return "unknown"
    return f"{head}-dirty" if _answer(["git", "status", "--porcelain"]) else head


def commit_of(folder: str) -> str:
    """Return the last commit that changed a folder of this checkout; ``unknown`` without git."""
    return _answer(["git", "log", "-1", "--format=%H", "--", folder]) or "unknown"


def versions_of(*packages: str) -> tuple[str, ...]:
    """Return ``name version`` of those that are installed."""
    found = []
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return tuple(found)


def slug(name: str) -> str:
    """Turn a machine's name into a part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def system() -> str:
    """Name the operating system and its kernel."""
    return f"{platform.system()} {platform.release()}"
