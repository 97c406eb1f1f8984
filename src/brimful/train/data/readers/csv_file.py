"""CSV files, with the names of the columns in their first line."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from brimful.errors import DataError
from brimful.train.data.readers.base import UNREADABLE, Needs, check_columns, open_bytes, unreadable
from brimful.train.data.records import Broken, Record

_MAX_FIELD_CHARS = 1 << 27
"""Python's own limit of 131072 is less than a long article."""


def read_csv(path: Path, name: str, needs: Needs) -> Iterator[Record | Broken]:
    """Read one record per row; every value is text.

    ``needs``: columns that the header must have. Raises DataError: the file is not UTF-8, or its
    header lacks columns.
    """
    csv.field_size_limit(_MAX_FIELD_CHARS)
    with open_bytes(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        rows = csv.reader(text, strict=True)
        try:
            header = next(rows, [])
            if header:
                check_columns(header, needs, f"{name} line 1")
            while True:
                before = rows.line_num
                row = next(rows, None)
                if row is None:
                    return
                if row:
                    yield _record(header, row, f"{name} line {before + 1}")
        except (UnicodeDecodeError, csv.Error) as error:
            raise _broken_file(name, rows.line_num + 1, error) from error
        except UNREADABLE as error:
            raise unreadable(f"{name} after line {rows.line_num}", error) from error


def _record(header: list[str], row: list[str], where: str) -> Record | Broken:
    if len(row) != len(header):
        detail = f"it has {len(row)} fields and the header {len(header)}"
        return Broken(where, "not as many fields as the header", detail)
    fields: dict[str, Any] = dict(zip(header, row, strict=True))
    return Record(fields, where)


def _broken_file(name: str, line: int, error: Exception) -> DataError:
    # What comes after such a place cannot be told apart, so that skipping one row is no way out.
    what = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else f"is no CSV ({error})"
    return DataError(f"{name} at or after line {max(1, line)} {what}; correct the file")
