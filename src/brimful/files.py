"""Writing files so that a reader, or a crash, never sees half of one."""

import contextlib
import errno
import os
from pathlib import Path

from brimful.errors import RunError


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: into a temporary beside it, synced, then renamed over it.

    Raises:
        RunError: The disk is full or the folder cannot be written; the old file is untouched.
    """
    try:
        # Through a link, so that the link stays one; and a device or a pipe is no file to replace.
        target = path.resolve()
        if target.exists() and not target.is_file() and not target.is_dir():
            target.write_bytes(content)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, content)
    except OSError as error:
        raise disk_error(path, error) from error


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name[:64]}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically; see ``write_bytes``."""
    write_bytes(path, text.encode())


def disk_error(path: Path, error: OSError) -> RunError:
    """Say in one sentence why a path could not be written and what to do."""
    if error.errno == errno.ENOSPC:
        return RunError(
            f"no space left on the disk of {path}; free some or give another --out or -o"
        )
    return RunError(
        f"{path} cannot be written ({error.strerror or error}); give another --out or -o"
    )


def cache_dir() -> Path:
    """Return the user's cache folder: ``$BRIMFUL_CACHE``, ``$XDG_CACHE_HOME/brimful``, or ours."""
    if own := os.environ.get("BRIMFUL_CACHE"):
        return Path(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "brimful"
    return Path.home() / ".cache" / "brimful"
