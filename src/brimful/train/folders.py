"""Folders that are written whole or not at all."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from brimful.files import disk_error


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Yield an empty folder beside the target that takes its place if the block succeeds.

    Raises:
        RunError: The disk is full; what was there before is untouched.
    """
    temporary = folder.with_name(f".{folder.name}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    except OSError as error:
        raise disk_error(folder, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
