"""Where training data comes from and how it is read. Values only: no torch, no numpy."""

from pathlib import Path
from typing import Any, Literal

import msgspec

from brimful.errors import InputError
from brimful.text.escaping import Line, check_line

Format = Literal["auto", "text", "jsonl", "json", "csv", "parquet", "datasets"]
OnBadRecord = Literal["stop", "skip"]

STDLIB = "stdlib"
"""The path that stands for the sources of the Python standard library."""
MAX_SHUFFLE_BUFFER = 1 << 20


class DataSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Training data, and how its records are read.

    Attributes:
        path: A file, a folder, ``stdlib``, or the name of a data set on the hub.
        config: Configuration of a data set on the hub; None: its only one.
        format: What the files are; ``auto`` goes by their suffixes.
        split: Split of a data set that has several.
        tokenizer: ``tokenizer.json``, folder or hub name of the tokenizer; None: that of the
            model's weights, or one trained on the text where it has none.
        chat_template: Text of a Jinja template that takes the place of the tokenizer's; None: the
            tokenizer's, or the built-in one where it has none.
        text_field: Field of plain or labelled text.
        messages_field: Field of a conversation.
        label_field: Field of a class.
        source_field: Field that a seq2seq model reads.
        target_field: Field that it writes.
        on_bad_record: Whether a record that cannot be used ends the run or is left out and counted.
        streaming: Read records as they are needed, and keep none.
        shuffle_buffer: Samples that are held and shuffled at a time when streaming.
        heldout: A file or folder to judge by; None: a share of the data.
        heldout_share: That share of the records, by a hash of their content; files of plain text
            have a share of their own (``corpus``).
    """

    path: Line
    config: Line | None
    format: Format
    split: Line
    tokenizer: Line | None
    chat_template: str | None
    text_field: Line
    messages_field: Line
    label_field: Line
    source_field: Line
    target_field: Line
    on_bad_record: OnBadRecord
    streaming: bool
    shuffle_buffer: int
    heldout: Line | None
    heldout_share: float


def plain_source(path: str, **changes: Any) -> DataSource:
    """Return a source with the names that most data uses, with changes.

    ``changes``: fields of ``DataSource`` that differ.
    """
    plain = DataSource(
        path=path,
        config=None,
        format="auto",
        split="train",
        tokenizer=None,
        chat_template=None,
        text_field="text",
        messages_field="messages",
        label_field="label",
        source_field="source",
        target_field="target",
        on_bad_record="stop",
        streaming=False,
        shuffle_buffer=1024,
        heldout=None,
        heldout_share=0.05,
    )
    return check_source(msgspec.structs.replace(plain, **changes))


def as_source(data: DataSource | Path | None) -> DataSource:
    """Return the source that a path alone stands for; None is the standard library."""
    if isinstance(data, DataSource):
        return data
    return plain_source(STDLIB if data is None else str(data))


def check_source(source: DataSource) -> DataSource:
    """Return the source as it is, or say what is wrong with it."""
    for field in source.__struct_fields__:
        value = getattr(source, field)
        if isinstance(value, str) and field != "chat_template":
            check_line(value, what=f"data: {field}")
    if not 1 <= source.shuffle_buffer <= MAX_SHUFFLE_BUFFER:
        raise InputError(
            f"shuffle_buffer={source.shuffle_buffer} is out of range; "
            f"give 1 to {MAX_SHUFFLE_BUFFER} samples"
        )
    if not 0 < source.heldout_share < 1:
        raise InputError(
            f"heldout_share={source.heldout_share} is out of range; "
            f"give more than 0 and less than 1"
        )
    return source
