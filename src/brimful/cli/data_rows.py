"""The rows of a data file that a plan is exported for, counted where the file lies here."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brimful.export.rows import Rows

_NAMES = frozenset({"role", "from", "id", "name", "type"})
"""Keys whose texts are no part of what a model reads."""


def rows_of(data: str) -> "Rows | None":
    """Count a file's rows and what is written in them.

    ``data``: as ``--data`` names it. Returns None: there is no such file here, or nothing here
    reads it.
    """
    from brimful.errors import DataError, InputError
    from brimful.export.rows import Rows
    from brimful.train.data.readers import READERS, SUFFIXES
    from brimful.train.data.readers.base import COMPRESSED
    from brimful.train.data.records import Record

    path = Path(data)
    inner = path.with_suffix("") if path.suffix in COMPRESSED else path
    kind = SUFFIXES.get(inner.suffix.lower())
    if kind is None or not path.is_file():
        return None
    number = num_bytes = 0
    try:
        for each in READERS[kind](path, "train", ()):
            if isinstance(each, Record):
                number += 1
                num_bytes += sum(len(text.encode()) for text in _texts(each.fields))
    except (DataError, InputError):
        return None
    return Rows(number, num_bytes) if number and num_bytes else None


def _texts(value: Any) -> "Iterator[str]":
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            if key not in _NAMES:
                yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
