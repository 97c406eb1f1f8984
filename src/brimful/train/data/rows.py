"""Rows of samples become padded micro-batches.

Shapes: B rows of a micro-batch, S input tokens, T target tokens.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from brimful.train.data.encoders.base import IGNORED
from brimful.train.data.pairs import longer_row, pair_batch
from brimful.train.data.samples import Arrays

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from brimful.build.batch import Batch

Row = Sequence[Arrays]
"""Samples that lie side by side in one row; one, where rows are not shared."""

Answer = Literal["tokens", "class", "target", "pair"]

PAD_MULTIPLE = 8
"""Matrix units take sizes by eights of 16-bit numbers."""


class RowShape(msgspec.Struct, frozen=True, kw_only=True):
    """How rows are laid out.

    Attributes:
        seq_len: The longest row.
        pad_id: What fills rows up.
        answer: What labels are: a token per input, one class, a target text, or for the two rows
            of a pair whose tokens are read and whose are scored (``pairs``).
        whole: Every row is one document of ``seq_len`` tokens, the padding of the last included.
    """

    seq_len: int
    pad_id: int
    answer: Answer
    whole: bool


def to_batches(rows: Sequence[Row], shape: RowShape, *, micro_batch: int) -> list["Batch"]:
    """Cut a step's rows into micro-batches, each as wide as its own longest row.

    The longest rows come first, so that rows of like length share a micro-batch and little is
    padding. The order within a step changes nothing but the order in which floats are added.
    """
    ordered = sorted(rows, key=lambda row: -_length(row, shape))
    return [
        _batch(ordered[start : start + micro_batch], shape)
        for start in range(0, len(ordered), micro_batch)
    ]


def padded_width(longest: int, seq_len: int) -> int:
    """Round a length up to ``PAD_MULTIPLE``, never above ``seq_len``."""
    return min(seq_len, -(-longest // PAD_MULTIPLE) * PAD_MULTIPLE)


def _length(row: Row, shape: RowShape) -> int:
    if shape.answer == "pair":
        return longer_row(row[0])
    return sum(len(sample.inputs) for sample in row)


def _batch(rows: Sequence[Row], shape: RowShape) -> "Batch":
    import numpy as np
    import torch

    from brimful.build.batch import Batch

    width = shape.seq_len
    if not shape.whole:
        longest = max(_length(row, shape) for row in rows)
        width = padded_width(longest, shape.seq_len)
    if shape.answer == "pair":
        return pair_batch([row[0] for row in rows], width=width, pad_id=shape.pad_id)
    inputs_BS = np.full((len(rows), width), shape.pad_id, np.int64)  # noqa: N806
    segments_BS = np.zeros((len(rows), width), np.int32)  # noqa: N806
    for place, row in enumerate(rows):
        start = 0
        for number, sample in enumerate(row, start=1):
            stop = start + len(sample.inputs)
            inputs_BS[place, start:stop] = sample.inputs
            segments_BS[place, start:stop] = number
            start = stop
    return Batch(
        torch.from_numpy(inputs_BS),
        torch.from_numpy(_labels(rows, shape, width)),
        None if shape.whole else torch.from_numpy(segments_BS),
    )


def _labels(rows: Sequence[Row], shape: RowShape, width: int) -> "npt.NDArray[np.int64]":
    import numpy as np

    if shape.answer == "class":
        return np.array([int(row[0].labels[0]) for row in rows], np.int64)
    if shape.answer == "target":
        width = padded_width(max(len(row[0].labels) for row in rows), shape.seq_len)
    labels_BT = np.full((len(rows), width), IGNORED, np.int64)  # noqa: N806
    for place, row in enumerate(rows):
        start = 0
        for sample in row:
            stop = start + len(sample.labels)
            labels_BT[place, start:stop] = sample.labels
            start = stop
    return labels_BT
