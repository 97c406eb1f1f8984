"""Writing files so that a reader, or a crash, never sees half of one."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from brimful.errors import FileFormatError, InputError, RunError

MOST_BYTES = 16 * 2**20
"""Of a file that people write or a model brings as its description; data is read in pieces."""


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: into a temporary beside it, synced, then renamed over it."""
    try:
        # Through a link, so that the link stays one; and a device or a pipe is no file to replace.
        target = path.resolve()
        if target.exists() and not target.is_file() and not target.is_dir():
            target.write_bytes(content)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, content)
    except RuntimeError as error:  # of Path.resolve, before Python 3.13
        raise RunError(f"{path} is a loop of links; give another --out or -o") from error
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


def check_output_file(path: Path, *, what: str) -> None:
    """Refuse a file that cannot be written, before the work whose result it would hold.

    ``path``: the file; a device or a pipe is none, and is written into.
    """
    with _said_of(path, what):
        target = path.resolve()
        if target.is_dir():
            raise InputError(f"{what} {path} is a folder; give the name of a file in it")
        if target.exists() and not target.is_file():
            return
        folder = target.parent
        _check_folder(folder, what=what, path=path)
        if not folder.exists():
            # As the user spelled it, but where a link leads elsewhere.
            named = path.parent if folder == path.parent.resolve() else folder
            raise InputError(
                f"{what} {path} cannot be written, since there is no folder {named}; make it first "
                f"(mkdir -p {named}) or give another path"
            )


def check_output_folder(path: Path, *, what: str) -> None:
    """Refuse a folder that cannot be made or written; it need not be there.

    Raises InputError: it, or what it would lie in, is a file or may not be written.
    """
    with _said_of(path, what):
        _check_folder(path.resolve(), what=what, path=path)


@contextlib.contextmanager
def _said_of(path: Path, what: str) -> Iterator[None]:
    """Turn what a file system says of a path into a sentence; a loop of links it says of itself."""
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.stat()
        yield
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InputError(f"{what} {path} is a loop of links; give another path") from error
        raise InputError(
            f"{what} {path} cannot be written ({error.strerror or error}); give another path"
        ) from error


def _check_folder(folder: Path, *, what: str, path: Path) -> None:
    """Refuse a folder of which the part that is there is a file, or closed to this user."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise InputError(
            f"{what} {path} cannot be written, since {there} is a file and not a folder; give "
            f"another path"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(
            f"{what} {path} cannot be written, since this user may not write in {there}; give "
            f"another path, or the right to write there"
        )


def is_there(text: str) -> bool:
    """Whether a text, which may be anything, is the path of a file or a folder."""
    try:
        return bool(text) and Path(text).exists()
    except (OSError, ValueError):  # too long for a name, or with a null character
        return False


def read_whole(path: Path, *, most_bytes: int = MOST_BYTES) -> bytes:
    """Read a description: a config.json, a plan, prices. No pipe is waited for, no disk swallowed.

    Raises OSError: it cannot be read.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise FileFormatError(f"{path} is a pipe or a device and is not read; give a file")
    if found.st_size > most_bytes:
        raise FileFormatError(
            f"{path} has {found.st_size} bytes and at most {most_bytes} are read; it is no "
            f"description of a model or a job, so give another file"
        )
    return path.read_bytes()


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
