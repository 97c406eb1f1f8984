"""One reader per file format. Each yields records, and what is broken, with file and place."""

from collections.abc import Callable, Iterator
from pathlib import Path

from brimful.train.data.readers.base import Needs
from brimful.train.data.readers.csv_file import read_csv
from brimful.train.data.readers.json_file import read_json
from brimful.train.data.readers.jsonl import read_jsonl
from brimful.train.data.readers.parquet import read_parquet
from brimful.train.data.records import Broken, Record

Reader = Callable[[Path, str, Needs], Iterator[Record | Broken]]

READERS: dict[str, Reader] = {
    "jsonl": read_jsonl,
    "json": read_json,
    "csv": read_csv,
    "parquet": read_parquet,
}
SUFFIXES: dict[str, str] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
}
"""The format of a file by its suffix, that of a compressed one by the suffix before it."""
