"""The files that a run leaves for people and plots: ``metrics.jsonl`` and ``data.json``."""

import os
from pathlib import Path
from typing import BinaryIO

import msgspec

from brimful.errors import FileFormatError
from brimful.files import disk_error, write_bytes
from brimful.train.data.tokens import TokenSet

DATA_SCHEMA = "brimful.data/1"


class TrainRow(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="train",
):
    """One optimizer step.

    Attributes:
        step: From 1.
        loss: Mean over the step's unmasked tokens before its update, in nats.
        learning_rate: Of this step.
        grad_norm: Global norm before clipping.
        tokens_per_s: Tokens of the step divided by ``step_s``.
        step_s: Wall time of the step, its data included.
    """

    step: int
    loss: float
    learning_rate: float
    grad_norm: float
    tokens_per_s: float
    step_s: float


class EvalRow(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="eval",
):
    """The loss on held-out text after a step, in nats per token."""

    step: int
    heldout_loss: float


class DataSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was trained on; ``unigram_entropy`` is of the held-out tokens, in nats per token."""

    schema: str
    unigram_entropy: float
    num_train_tokens: int
    num_heldout_tokens: int
    source: str


Row = TrainRow | EvalRow


def open_metrics(path: Path, *, last_step: int) -> BinaryIO:
    """Open the curve to go on after ``last_step``; what lies beyond it is cut.

    A run that was killed has rows after its last checkpoint, the last one perhaps half. Its
    continuation repeats those steps, and the file stays one curve.

    Raises:
        FileFormatError: A row before the cut is broken.
        RunError: The file cannot be written.
    """
    kept = [row for row in read_metrics(path) if row.step <= last_step] if path.exists() else []
    write_bytes(path, b"".join(map(_line, kept)))
    return path.open("ab")


def append_row(file: BinaryIO, row: Row) -> None:
    """Write one row and hand it to the operating system.

    Raises:
        RunError: The disk is full.
    """
    try:
        file.write(_line(row))
        file.flush()
    except OSError as error:
        raise disk_error(Path(file.name), error) from error


def sync_metrics(file: BinaryIO) -> None:
    """Make the rows durable, so that no checkpoint is ever ahead of its curve.

    Raises:
        RunError: The disk is full.
    """
    try:
        os.fsync(file.fileno())
    except OSError as error:
        raise disk_error(Path(file.name), error) from error


def read_metrics(path: Path) -> tuple[Row, ...]:
    """Read all rows; a last line without its line end was cut off by a kill and is left out.

    Raises:
        FileFormatError: The file cannot be read or a whole line is no row.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read ({error.strerror}); check it") from error
    rows: list[Row] = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(msgspec.json.decode(line, type=Row))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise FileFormatError(f"{path} line {number} is no row ({error}); delete it") from error
    return tuple(rows)


def write_data_summary(path: Path, tokens: TokenSet) -> None:
    """Write ``data.json``."""
    summary = DataSummary(
        schema=DATA_SCHEMA,
        unigram_entropy=tokens.unigram_entropy,
        num_train_tokens=tokens.num_train_tokens,
        num_heldout_tokens=tokens.num_heldout_tokens,
        source=tokens.source,
    )
    write_bytes(path, msgspec.json.format(msgspec.json.encode(summary)) + b"\n")


def _line(row: Row) -> bytes:
    return msgspec.json.encode(row) + b"\n"
