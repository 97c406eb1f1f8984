"""Parquet files, read a few rows at a time."""

from collections.abc import Iterator
from pathlib import Path

from brimful.train.data.readers.base import Needs, check_columns, require, unreadable
from brimful.train.data.records import Broken, Record

_ROWS_PER_READ = 256


def read_parquet(path: Path, name: str, needs: Needs) -> Iterator[Record | Broken]:
    """Read one record per row.

    ``needs``: columns that the file must have. Raises DataError: the file is damaged, or lacks
    columns. Raises InputError: pyarrow is not installed.
    """
    arrow = require("pyarrow", "Parquet files")
    parquet = require("pyarrow.parquet", "Parquet files")
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            check_columns(file.schema_arrow.names, needs, name)
            for rows in file.iter_batches(batch_size=_ROWS_PER_READ):
                for fields in rows.to_pylist():
                    number += 1
                    yield Record(fields, f"{name} row {number}")
    except (OSError, arrow.ArrowException) as error:
        where = f"{name} after row {number}" if number else name
        raise unreadable(where, error) from error
