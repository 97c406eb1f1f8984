"""What may be in a run's folder before it begins or goes on. Needs no torch: it is asked first."""

import os
from pathlib import Path

from brimful.errors import InputError, RunError
from brimful.files.writing import cache_dir, disk_error
from brimful.values.run_files import (
    CHECKPOINTS,
    COMMANDS_FILE,
    DATA_FILE,
    LAUNCH_FILE,
    METRICS_FILE,
    MODEL,
    PLAN_FILE,
    SEARCH_FILE,
    SETTINGS_FILE,
    SIMULATION_FILE,
    SOURCE_FILE,
    TOKENS,
)

BEFORE_TRAINING = frozenset({
    PLAN_FILE, TOKENS, COMMANDS_FILE, SEARCH_FILE, SIMULATION_FILE, SOURCE_FILE, SETTINGS_FILE,
    LAUNCH_FILE,
})  # fmt: skip
"""What is written before the first step; anything else means that the folder is in use."""

_RUN_FILES = BEFORE_TRAINING | {METRICS_FILE, DATA_FILE, CHECKPOINTS, MODEL}


def check_out(out: Path, *, resume: bool) -> None:
    """Refuse a folder that a run cannot begin in, or cannot go on in; writes nothing.

    ``out``: the run's folder; need not be there. ``resume``: whether a run is to go on.
    """
    try:
        present = {path.name for path in out.iterdir()} if out.exists() else set()
    except OSError as error:
        raise disk_error(out, error) from error
    if not resume and present - BEFORE_TRAINING:
        raise InputError(
            f"--out {out} is not empty ({min(present - BEFORE_TRAINING)}); "
            f"choose another folder, or go on with --resume"
        )
    if resume and not present & _RUN_FILES:
        raise InputError(f"--out {out} holds no run to go on with; leave --resume out")
    there = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not there.is_dir():
        raise RunError(f"{out} cannot be written: {there} is a file; give another --out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise RunError(f"{out} cannot be written (no permission in {there}); give another --out")


def token_cache(out: Path) -> Path:
    """Choose where token files are kept: in the user's cache, or in ``out`` where that is closed.

    Returns the folder, for ``RunSettings.cache``.
    """
    cache = cache_dir() / TOKENS
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        return out / TOKENS
    return cache if os.access(cache, os.W_OK) else out / TOKENS
