"""The files that a run leaves for people and plots: ``metrics.jsonl`` and ``data.json``."""

import os
from pathlib import Path
from typing import BinaryIO

import msgspec

from brimful.errors import FileFormatError
from brimful.files.writing import disk_error, write_bytes, write_text
from brimful.text.escaping import json_text
from brimful.text.mismatch import explain_mismatch
from brimful.train.data.prepare import Summary
from brimful.values.run_files import DATA_SCHEMA, EVENTS, DataSummary, ExpertRow, Row, TrainRow


def open_metrics(path: Path, *, last_step: int) -> BinaryIO:
    """Open the curve to go on after ``last_step``; what lies beyond it is cut.

    A run that was killed has rows after its last checkpoint, the last one perhaps half. Its
    continuation repeats those steps, and the file stays one curve. That memory ran out, or a
    process was lost, stays: it happened, whatever was repeated.

    Raises FileFormatError: a row before the cut is broken. Raises RunError: the file cannot be
    written.
    """
    known = read_metrics(path) if path.exists() else ()
    kept = [row for row in known if row.step <= last_step or isinstance(row, EVENTS)]
    write_bytes(path, b"".join(map(_line, kept)))
    return path.open("ab")


def append_row(file: BinaryIO | None, row: Row) -> None:
    """Write one row and hand it to the operating system.

    ``file``: of ``open_metrics``; None: another process writes it. Raises RunError: the disk is
    full.
    """
    if file is None:
        return
    try:
        file.write(_line(row))
        file.flush()
    except OSError as error:
        raise disk_error(Path(file.name), error) from error


def add_row(path: Path, row: Row) -> None:
    """Write one row behind those of a file that nobody has open, a half one cut off.

    Raises RunError: the disk is full.
    """
    known = read_metrics(path) if path.exists() else ()
    write_bytes(path, b"".join(map(_line, (*known, row))))


def sync_metrics(file: BinaryIO | None) -> None:
    """Make the rows durable, so that no checkpoint is ever ahead of its curve.

    ``file``: as for ``append_row``. Raises RunError: the disk is full.
    """
    if file is None:
        return
    try:
        os.fsync(file.fileno())
    except OSError as error:
        raise disk_error(Path(file.name), error) from error


def without_experts(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Leave out the loads of experts: of a large mixture they are most of the file's bytes."""
    return tuple(row for row in rows if not isinstance(row, ExpertRow))


def read_metrics(path: Path) -> tuple[Row, ...]:
    """Read all rows; a last line without its line end was cut off by a kill and is left out."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read ({error.strerror}); check it") from error
    rows: list[Row] = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(msgspec.json.decode(line, type=Row))
        except msgspec.ValidationError as error:
            reason = explain_mismatch(error, Row)
            raise FileFormatError(
                f"{path} line {number} is no row: {reason}, or delete it"
            ) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise FileFormatError(f"{path} line {number} is no row ({error}); delete it") from error
        _check_loss(rows[-1], f"{path} line {number}")
    return tuple(rows)


def write_data_summary(path: Path, told: Summary) -> None:
    """Write ``data.json``."""
    summary = DataSummary(
        schema=DATA_SCHEMA,
        unigram_entropy=told.unigram_entropy,
        num_train_tokens=told.num_train_tokens,
        num_heldout_tokens=told.num_heldout_tokens,
        source=told.source,
        num_skipped=sum(skipped.num_records for skipped in told.skipped),
        num_truncated=told.num_truncated,
    )
    write_text(path, json_text(summary, indent=2) + "\n")


def _check_loss(row: Row, place: str) -> None:
    """Refuse a loss that is no number where the step was not skipped: none is ever written."""
    if isinstance(row, TrainRow) and not row.skipped and None in (row.loss, row.grad_norm):
        raise FileFormatError(
            f"{place} is no row: loss and grad_norm must be numbers where no step was skipped; "
            f"mend it, or delete it"
        )


def _line(row: Row) -> bytes:
    return msgspec.json.encode(row) + b"\n"
