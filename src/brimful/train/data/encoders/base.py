"""What every task's samples have in common."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from brimful.train.data.coder import Coder
from brimful.train.data.readers.base import Needs

IGNORED = -100
"""Labels with this value are masked (``brimful.build.batch.IGNORE_INDEX``, which needs torch)."""


class Sample(NamedTuple):
    """What a model reads and what it should answer.

    Attributes:
        inputs: Token ids.
        labels: For a decoder one per input, already shifted: the token after it, or ``IGNORED``;
            for a classifier its class; for seq2seq the target's token ids.
    """

    inputs: list[int]
    labels: list[int]


class Encoded(NamedTuple):
    """What became of a record.

    Attributes:
        samples: Its samples; several for a text that is longer than a sequence, none if dropped.
        truncated: Whether something was cut away.
        dropped: Why nothing is left of a sound record; empty if something is.
    """

    samples: list[Sample]
    truncated: bool
    dropped: str


class Encoder(msgspec.Struct, frozen=True, kw_only=True):
    """How the records of a task become samples.

    Attributes:
        needs: Sets of fields, each enough for a record.
        parse: Checks a record's fields and keeps what counts; raises BadRecordError.
        texts: Every text in it, for a tokenizer to learn from.
        encode: Makes its samples, of at most so many tokens; raises BadRecordError.
        identity: What else of the model decides what a sample is, as the names of its classes.
    """

    needs: Needs
    parse: Callable[[dict[str, Any]], Any]
    texts: Callable[[Any], Iterator[str]]
    encode: Callable[[Any, Coder, int], Encoded]
    identity: tuple[str, ...] = ()


def dropped(reason: str, *, truncated: bool = False) -> Encoded:
    """Say that nothing is left of a sound record."""
    return Encoded([], truncated, reason)
