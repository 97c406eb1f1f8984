"""Folders that are written whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from brimful.files.writing import disk_error


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Yield an empty folder beside the target that takes its place if the block succeeds.

    What is written is on the disk before it has the name, and what was there before is deleted
    last: whenever the process is killed, one of the two is left.

    Raises RunError: the disk is full; what was there before is untouched.
    """
    temporary, before = (folder.with_name(f".{folder.name}.{end}") for end in ("tmp", "old"))
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        for path in (*temporary.rglob("*"), temporary):
            sync(path)
        shutil.rmtree(before, ignore_errors=True)
        if folder.exists():
            folder.rename(before)
        temporary.rename(folder)
        sync(folder.parent)
        shutil.rmtree(before, ignore_errors=True)
    except OSError as error:
        raise disk_error(folder, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sync(path: Path) -> None:
    """Put a file, or the names in a folder, on the disk for good."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
