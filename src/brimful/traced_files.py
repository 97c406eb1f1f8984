"""What was traced on this machine: JSON files in the user's cache folder, by name.

Written whole or not at all, never executed, and bounded: the oldest go. A folder that cannot be
written is no fault: what was traced is known to this process then, and traced again by the next.
"""

import contextlib
import hashlib
import json
import os
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from brimful.errors import RunError
from brimful.files import cache_dir, write_bytes
from brimful.versions import versions

MOST_FILES = 400
"""A profile has 50 to 500 KB, the layout of a model 5."""
_FOLDER = "traced"
_LIBRARIES = ("peft", "bitsandbytes")
"""What else decides what is traced, beside torch and transformers."""
_SOURCES = ("build", "pretend", "simulate")

Kept = TypeVar("Kept")
"""What JSON has a form for: a struct, a text."""


def read_traced(name: str, kind: type[Kept]) -> Kept | None:
    """Read what was kept under a name; None where nothing was, or by another version."""
    path = _path(name)
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):  # none, or cut short: it is traced anew
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # it was of use: others go before
    return kept


def keep_traced(name: str, kept: Any) -> None:
    """Keep something under a name, in the place of what was there."""
    with contextlib.suppress(OSError, RunError):
        write_bytes(_path(name), msgspec.json.encode(kept))
        _forget_oldest(_path(name).parent)


def digest(*parts: Any) -> str:
    """Hash what decides a trace: values that JSON has, the versions of libraries, our sources."""
    text = json.dumps([*parts, all_versions(), source_hash()], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def all_versions() -> tuple[str, ...]:
    """List every version that decides what is traced."""
    found = []
    for library in _LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{library} {metadata.version(library)}")
    return (*found, *versions())


@cache
def source_hash() -> str:
    """Hash the sources that decide what a trace looks like."""
    hashed = hashlib.sha256()
    for package in _SOURCES:
        folder = resources.files("brimful").joinpath(package)
        for file in sorted(Path(str(folder)).rglob("*.py")):
            hashed.update(file.read_bytes())
    return hashed.hexdigest()[:16]


def _path(name: str) -> Path:
    return cache_dir() / _FOLDER / f"{name}.json"


def _forget_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime)
    for file in files[: max(0, len(files) - MOST_FILES)]:
        file.unlink(missing_ok=True)
