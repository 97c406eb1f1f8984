"""Folders that a script makes a second time, because it is run a second time here."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from brimful.pretend.replacing import replaced

_made: set[str] = set()
"""By scripts that this process has run."""


@contextmanager
def folders_made_again() -> Iterator[None]:
    """Let a script make folders that an earlier run of it has made, each once.

    Run for real it would have found none of them.
    """
    make, earlier = os.mkdir, frozenset(_made)
    made = set[str]()

    def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        where = str(Path(os.fsdecode(path)).absolute()) if dir_fd is None else ""
        try:
            make(path, mode, dir_fd=dir_fd)
        except FileExistsError:
            is_again = where in earlier and where not in made and Path(where).is_dir()
            if not is_again:
                raise
        made.add(where)

    with replaced([(os, "mkdir", mkdir)]):
        try:
            yield
        finally:
            _made.update(made - {""})
