"""A recording as a file: NumPy's npz, every column as it is, nothing that could run code.

Owns the format ``brimful.tape/1``: the numeric columns of ``Recording`` as arrays of their own
type, and one array of bytes, ``texts``, which is JSON: the schema, the names that the columns index
and the costs. Needs no torch.
"""

import io
import zipfile
import zlib
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import numpy as np
from numpy.typing import NDArray

from brimful.errors import FileFormatError
from brimful.files.writing import write_bytes
from brimful.pretend.recording import OpCost, Recording
from brimful.text.escaping import json_text

TAPE_SCHEMA = "brimful.tape/1"
_TEXTS = "texts"
_ROWS = (
    "num_bytes",
    "born",
    "died",
    "stream",
    "in_use_until",
    "owner",
    "op",
    "node",
    "line",
    "phase",
    "item",
    "shape_dtype",
)
_ORDERS = ("events", "phase_starts", "marks", "cache_flushes")
_NAMED_BY = {
    "owner": "owners",
    "op": "ops",
    "node": "nodes",
    "line": "lines",
    "phase": "phases",
    "item": "items",
    "shape_dtype": "shapes",
}
_TYPES = get_type_hints(Recording)
_DTYPES = {
    name: np.dtype(np.int32 if "int32" in str(_TYPES[name]) else np.int64)
    for name in (*_ROWS, *_ORDERS)
}
"""Of each column, as ``Recording`` declares it."""
_BROKEN = (
    OSError,
    ValueError,
    KeyError,
    EOFError,
    MemoryError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What reading an archive with wrong bytes in it can raise (encrypted: RuntimeError)."""


class _Texts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is not a column of numbers; see ``Recording``."""

    schema: str
    owners: tuple[str, ...]
    ops: tuple[str, ...]
    nodes: tuple[str, ...]
    lines: tuple[str, ...]
    phases: tuple[str, ...]
    items: tuple[str, ...]
    shapes: tuple[tuple[str, str], ...]
    costs: tuple[OpCost, ...]


def save_recording(recording: Recording, path: Path) -> None:
    """Write a recording as one npz file, atomically.

    ``path``: the file, by custom ``*.npz``. Raises RunError: the file cannot be written.
    """
    named = {name: getattr(recording, name) for name in (*_NAMED_BY.values(), "costs")}
    texts = json_text(_Texts(schema=TAPE_SCHEMA, **named)).encode()
    arrays = {name: getattr(recording, name) for name in (*_ROWS, *_ORDERS)}
    arrays[_TEXTS] = np.frombuffer(texts, dtype=np.uint8)
    content = io.BytesIO()
    # What np.savez_compressed writes, at zlib's fastest level: its own takes four times as long.
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    write_bytes(path, content.getvalue())


def load_recording(path: Path) -> Recording:
    """Read a recording that ``save_recording`` wrote.

    Returns the recording, equal to the one that was saved.
    """
    arrays = _arrays(path)
    if _TEXTS not in arrays:
        raise FileFormatError(f"{path} is an npz file and no recording; give one saved by brimful")
    texts = _texts(arrays.pop(_TEXTS), path)
    parts: dict[str, Any] = msgspec.structs.asdict(texts)
    del parts["schema"]
    parts |= {name: _column(arrays, name, path) for name in (*_ROWS, *_ORDERS)}
    recording = Recording(**parts)
    problem = _problem(recording)
    if problem:
        raise FileFormatError(f"{path} is a damaged recording ({problem}); record it again")
    return recording


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        # Always as an archive: np.load would also take a single array, or try a pickle.
        with np.lib.npyio.NpzFile(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except _BROKEN as error:
        reason = getattr(error, "strerror", None) or "not a whole npz file"
        raise FileFormatError(
            f"{path} cannot be read as a recording ({reason}); give one saved by brimful"
        ) from error


def _texts(raw: NDArray[Any], path: Path) -> _Texts:
    try:
        schema = msgspec.json.decode(raw.tobytes(), type=_Schema).schema
        if schema != TAPE_SCHEMA:
            raise FileFormatError(
                f"{path} has schema {schema!r} and this version reads {TAPE_SCHEMA!r}; record again"
            )
        return msgspec.json.decode(raw.tobytes(), type=_Texts)
    except msgspec.MsgspecError as error:
        raise FileFormatError(
            f"{path} is a damaged recording ({error}); record it again"
        ) from error


class _Schema(msgspec.Struct, frozen=True):
    """The one field that every version has."""

    schema: str


def _column(arrays: dict[str, NDArray[Any]], name: str, path: Path) -> NDArray[Any]:
    column = arrays.get(name)
    if column is None or column.dtype != _DTYPES[name] or column.ndim != 1:
        found = "missing" if column is None else f"{column.dtype} of {column.ndim} dimensions"
        raise FileFormatError(
            f"{path} is a damaged recording (column {name} is {found}); record it again"
        )
    return column


def _problem(recording: Recording) -> str:
    """Say what keeps columns from being one recording; empty: nothing."""
    num_rows, num_events = len(recording.num_bytes), len(recording.events)
    for name in _ROWS:
        if len(getattr(recording, name)) != num_rows:
            return f"column {name} has {len(getattr(recording, name))} rows of {num_rows}"
    for name, table in _NAMED_BY.items():
        if not _within(getattr(recording, name), 0, len(getattr(recording, table))):
            return f"column {name} points outside its {len(getattr(recording, table))} names"
    if not _within(recording.events, -num_rows, num_rows):
        return f"an event is of none of the {num_rows} rows"
    if not _within(recording.born, 0, num_events) or not _within(recording.died, -1, num_events):
        return f"a row was born or died at none of the {num_events} events"
    if len(recording.phase_starts) != len(recording.phases):
        return f"{len(recording.phase_starts)} starts of {len(recording.phases)} phases"
    return ""


def _within(column: NDArray[Any], low: int, high: int) -> bool:
    return not len(column) or bool((column.min() >= low) and (column.max() < high))
