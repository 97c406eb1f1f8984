"""What the readers share: opening files, compressed ones too, and judging column names."""

import gzip
import io
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, cast

from brimful.errors import DataError, InputError

Needs = tuple[tuple[str, ...], ...]
"""Sets of fields, each of which is enough for a record to be used; none: any record will do."""

COMPRESSED = (".gz", ".zst")
UNREADABLE = (OSError, EOFError, zlib.error)
"""What reading on in a file may raise: the disk, and packed files that end early or are damaged."""


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading; one that ends in .gz or .zst is unpacked while it is read.

    Raises DataError: it cannot be opened.
    """
    try:
        if path.suffix == ".gz":
            return cast("IO[bytes]", gzip.open(path, "rb"))
        if path.suffix == ".zst":
            arrow = require("pyarrow", "zstd files")
            stream = arrow.input_stream(str(path), compression="zstd")
            return cast("IO[bytes]", io.BufferedReader(stream))
        return path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path | str, error: Exception) -> DataError:
    """Say in one sentence that a file cannot be read."""
    reason = (
        getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
    )
    return DataError(f"{path} cannot be read ({reason}); check the file")


def require(module: str, what: str) -> Any:
    """Import a library that comes with ``brimful[data]``."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"{what} need {module}, which is not installed; pip install 'brimful[data]'"
        ) from error


def check_columns(names: Iterable[str], needs: Needs, where: str) -> None:
    """Refuse a table none of whose rows could be used."""
    found = list(names)
    if needs and not any(set(need) <= set(found) for need in needs):
        wanted = " or ".join(" and ".join(map(repr, need)) for need in needs)
        shown = ", ".join(repr(name[:40]) for name in found[:8])
        raise DataError(
            f"{where} names the columns {shown} and {wanted} is needed; "
            f"rename them, or name the field (text_field and the like)"
        )
