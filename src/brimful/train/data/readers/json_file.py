"""JSON files: a list of objects, or an object with such a list. Read whole: use JSONL for much."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from brimful.errors import DataError
from brimful.train.data.readers.base import UNREADABLE, Needs, open_bytes, unreadable
from brimful.train.data.readers.jsonl import read_jsonl
from brimful.train.data.records import Broken, Record, kind_of

_LIST = "data"


def read_json(path: Path, name: str, needs: Needs) -> Iterator[Record | Broken]:
    """Read the items of a JSON list, or of the list ``data`` of a JSON object.

    Files that are called .json and hold JSON lines are read as such.

    Raises DataError: the file is no JSON, or holds no list.
    """
    with open_bytes(path) as file:
        try:
            content = file.read()
        except UNREADABLE as error:
            raise unreadable(name, error) from error
    if _is_jsonl(content):
        yield from read_jsonl(path, name, needs)
        return
    for number, fields in enumerate(_items(_parse(content, name), name), start=1):
        where = f"{name} item {number}"
        if isinstance(fields, dict):
            yield Record(fields, where)
        else:
            detail = f"it is {kind_of(fields)} and must be an object"
            yield Broken(where, "no JSON object", detail)


def _is_jsonl(content: bytes) -> bool:
    first, _, rest = content.lstrip().partition(b"\n")
    if not rest.strip():
        return False
    try:
        return isinstance(msgspec.json.decode(first), dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _parse(content: bytes, name: str) -> Any:
    try:
        return json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{name} line {line} is not UTF-8; convert the file") from error
    except json.JSONDecodeError as error:
        if not content.strip():
            raise DataError(f"{name} is empty; give a file with records in it") from error
        raise DataError(
            f"{name} line {error.lineno} is no JSON ({error.msg}); correct the file"
        ) from error
    except RecursionError as error:
        raise DataError(f"{name} is nested too deep to be read; flatten its records") from error


def _items(value: Any, name: str) -> list[Any]:
    found = value.get(_LIST) if isinstance(value, dict) else value
    if not isinstance(found, list):
        raise DataError(
            f"{name} line 1 begins {kind_of(value)} without a list of records; "
            f"give a list, or an object whose {_LIST!r} is one"
        )
    return found
