"""JSON lines: one object per line."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from brimful.train.data.readers.base import UNREADABLE, Needs, open_bytes, unreadable
from brimful.train.data.records import Broken, Record, kind_of

_BOM = b"\xef\xbb\xbf"


def read_jsonl(path: Path, name: str, _needs: Needs) -> Iterator[Record | Broken]:
    """Read one record per line; blank lines are none.

    Yields records and broken lines, in order. Raises DataError: the file cannot be read.
    """
    with open_bytes(path) as file:
        number = 0
        try:
            for number, line in enumerate(file, start=1):
                content = line.removeprefix(_BOM) if number == 1 else line
                if not content.isspace() and content:
                    yield _parse(content, f"{name} line {number}")
        except UNREADABLE as error:
            raise unreadable(f"{name} after line {number}", error) from error


def _parse(line: bytes, where: str) -> Record | Broken:
    try:
        fields = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        try:
            line.decode()
        except UnicodeDecodeError as undecodable:
            return Broken(where, "not UTF-8", f"it is not UTF-8 at byte {undecodable.start}")
        return Broken(where, "no JSON", f"it is no JSON ({error})")
    if not isinstance(fields, dict):
        detail = f"it is {kind_of(fields)} and must be an object"
        return Broken(where, "no JSON object", detail)
    return Record(fields, where)
