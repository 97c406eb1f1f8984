"""What was traced: JSON files by name, in the user's cache folder, or shipped.

What was traced on this machine is in a folder of the versions that decide it. It is written whole
or not at all, never executed, and bounded: the oldest go. A folder that cannot be written is no
fault: what was traced is known to this process then, and traced again by the next.

Of models that many ask about a trace is shipped, packed; each says by which versions it was made.
"""

import contextlib
import gzip
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from brimful.errors import RunError
from brimful.files.writing import cache_dir, write_bytes
from brimful.process.versions import versions

REFUSED = ".refused"
"""End of the name of what was refused when it was traced."""
MOST_FILES = 400
"""A profile has 50 to 500 KB, the layout of a model 5."""
_FOLDER = "traced"
_SHIPPED = "data", "traced"
PACKED = ".json.gz"
"""End of the name of what is shipped."""
_LIBRARIES = ("peft", "bitsandbytes")
"""What else decides what is traced, beside torch and transformers."""
_OTHERS = ("python", "brimful")
"""What else is among the versions."""
_SOURCES = ("build", "pretend", "simulate")

Kept = TypeVar("Kept")
"""What JSON has a form for: a struct, a text."""


def read_traced(name: str, kind: type[Kept]) -> Kept | None:
    """Read what was kept under a name here, else what is shipped; None where neither is."""
    path = _path(name)
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):  # none, or cut short
        return _shipped(name, kind)
    with contextlib.suppress(OSError):
        os.utime(path)  # it was of use: others go before
    return kept


def _shipped(name: str, kind: type[Kept]) -> Kept | None:
    file = shipped_folder() / f"{name}{PACKED}"
    if not file.is_file():
        return None
    return msgspec.json.decode(gzip.decompress(file.read_bytes()), type=kind)


def shipped_folder() -> Path:
    """Return where shipped traces lie."""
    return Path(str(resources.files("brimful").joinpath(*_SHIPPED)))


def ship(folder: Path) -> list[Path]:
    """Pack all that was traced here, and return the files.

    Not what was refused: later versions of the libraries may run it.
    """
    written = []
    for file in sorted(_here().glob("*.json")):
        if not file.stem.endswith(REFUSED):
            packed = folder / f"{file.stem}{PACKED}"
            write_bytes(packed, gzip.compress(file.read_bytes(), mtime=0))
            written.append(packed)
    return written


_kept: Counter[str] = Counter()
"""How often this process kept something, by name."""


def keep_traced(name: str, kept: Any) -> None:
    """Keep something under a name, in the place of what was there."""
    _kept[name] += 1
    with contextlib.suppress(OSError, RunError):
        write_bytes(_path(name), msgspec.json.encode(kept))
        _forget_oldest(cache_dir() / _FOLDER)


def num_kept() -> int:
    """Return how often this process kept something: what hangs on traces is made anew then."""
    return _kept.total()


def forget_traced(name: str) -> None:
    """Take away what was kept under a name here, if anything was."""
    _path(name).unlink(missing_ok=True)


def digest(*parts: Any) -> str:
    """Hash what tells one trace from another: values that JSON has."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def all_versions() -> tuple[str, ...]:
    """List every version that decides what is traced."""
    found = []
    for library in _LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{library} {metadata.version(library)}")
    return (*found, *versions())


def is_of_these_libraries(made_by: Iterable[str]) -> bool:
    """Whether a trace was made by the libraries that are installed: what they run is as it was."""
    return _libraries(made_by) == _libraries(all_versions())


def _libraries(told: Iterable[str]) -> set[str]:
    return {each for each in told if each.split(maxsplit=1)[0] not in _OTHERS}


@cache
def source_hash() -> str:
    """Hash the sources that decide what a trace looks like."""
    hashed = hashlib.sha256()
    for package in _SOURCES:
        folder = resources.files("brimful").joinpath(package)
        for file in sorted(Path(str(folder)).rglob("*.py")):
            hashed.update(file.read_bytes())
    return hashed.hexdigest()[:16]


@cache
def _versions_folder() -> str:
    return digest(all_versions(), source_hash())


def _here() -> Path:
    """Return the folder of what these versions traced."""
    return cache_dir() / _FOLDER / _versions_folder()


def _path(name: str) -> Path:
    return _here() / f"{name}.json"


def _forget_oldest(folder: Path) -> None:
    files = sorted(folder.rglob("*.json"), key=lambda file: file.stat().st_mtime)
    for file in files[: max(0, len(files) - MOST_FILES)]:
        file.unlink(missing_ok=True)
