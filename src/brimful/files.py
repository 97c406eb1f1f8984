"""Writing files so that a reader, or a crash, never sees half of one."""

import errno
import os
from pathlib import Path

from brimful.errors import RunError


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: into a temporary beside it, synced, then renamed over it.

    Raises:
        RunError: The disk is full or the folder cannot be written; the old file is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise disk_error(path, error) from error


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically; see ``write_bytes``."""
    write_bytes(path, text.encode())


def disk_error(path: Path, error: OSError) -> RunError:
    """Say in one sentence why a path could not be written and what to do."""
    if error.errno == errno.ENOSPC:
        return RunError(f"no space left on the disk of {path}; free some or choose another --out")
    return RunError(f"{path} cannot be written ({error.strerror or error}); choose another --out")


def cache_dir() -> Path:
    """Return the user's cache folder: ``$BRIMFUL_CACHE``, ``$XDG_CACHE_HOME/brimful``, or ours."""
    if own := os.environ.get("BRIMFUL_CACHE"):
        return Path(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "brimful"
    return Path.home() / ".cache" / "brimful"
