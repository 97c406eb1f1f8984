"""Samples that are read while training goes on; a buffer of them is held, and no more.

The buffer is filled, shuffled and used up before the next one is read, so that a position (where
the buffer begins, and how much of it is used) says everything, and a resumed run sees the very
same batches.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import msgspec

from brimful.errors import DataError
from brimful.train.data.batches import shuffled
from brimful.train.data.coder import NO_LIMIT, Coder
from brimful.train.data.encoders.base import IGNORED, Encoder, Sample
from brimful.train.data.encoding import Parsed, Split, encode_parsed, parse_items
from brimful.train.data.origin import Origin
from brimful.train.data.records import Broken, Record, Tally, describe_skipped
from brimful.train.data.rows import Row
from brimful.train.data.sample_batches import Window, lay_out, shuffle_rows
from brimful.train.data.samples import Arrays
from brimful.train.data.tokens import check_tokens


class StreamSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a stream becomes rows.

    Attributes:
        seq_len: The longest row.
        layout: As ``Job.packing``.
        buffer: Samples that are shuffled at a time.
        seed: Seed of the order.
        vocab_size: Rows of the model's embedding.
    """

    seq_len: int
    layout: str
    buffer: int
    seed: int
    vocab_size: int


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """What is read, and how."""

    origin: Origin
    encoder: Encoder
    coder: Coder
    split: Split


class _Reading:
    """A pass under way: the records still to come, and how many were taken."""

    def __init__(self, items: Iterable[Record | Broken], num_taken: int) -> None:
        self.num_taken = num_taken
        self._items = islice(items, num_taken, None)

    def __iter__(self) -> Iterator[Record | Broken]:
        for item in self._items:
            self.num_taken += 1
            yield item


class _Pass(NamedTuple):
    epoch: int
    reading: _Reading
    samples: Iterator[list[Sample]]


class StreamWindows:
    """Windows of a stream; the ``index`` of one counts the records of the pass before it."""

    def __init__(self, stream: Stream, settings: StreamSettings, tally: Tally) -> None:
        """Keep what is read; reading begins with the first window.

        ``tally``: counts the records of the first pass that are left out.
        """
        self.stream = stream
        self.settings = settings
        self.tally = tally
        self._pass: _Pass | None = None
        self._newest: tuple[tuple[int, int], Window] | None = None

    def window_at(self, epoch: int, index: int) -> Window:
        """Return the window that begins after ``index`` records of a pass.

        Raises DataError: a bad record, where those end the run; or a pass without a sample.
        """
        if self._newest is None or self._newest[0] != (epoch, index):
            self._newest = (epoch, index), self._make(epoch, index)
        return self._newest[1]

    def _make(self, epoch: int, index: int) -> Window:
        under_way = self._pass
        if under_way is None or (under_way.epoch, under_way.reading.num_taken) != (epoch, index):
            under_way = self._pass = self._open(epoch, index)
        samples: list[Sample] = []
        ended = True
        for made in under_way.samples:
            samples += made
            if len(samples) >= self.settings.buffer:
                ended = False
                break
        if not samples and not index:
            raise DataError(
                f"{self.stream.origin.words} holds no record that can be used (left out: "
                f"{describe_skipped(self.tally.skipped())}); correct it or give other data"
            )
        following = (epoch + 1, 0) if ended else (epoch, under_way.reading.num_taken)
        return Window(self._rows(samples, epoch, index), _identity, following)

    def _open(self, epoch: int, index: int) -> _Pass:
        reading = _Reading(self.stream.origin.read(), index)
        tally = self.tally if epoch == 0 else Tally(self.tally.on_bad_record)
        stream, settings = self.stream, self.settings
        parsed = parse_items(iter(reading), stream.encoder, stream.split, tally)
        max_tokens = NO_LIMIT if settings.layout == "wrapped" else settings.seq_len
        kept = (item for item in parsed if not item.is_heldout)
        samples = (
            checked(made, settings.vocab_size)
            for made in encode_parsed(kept, stream.encoder, stream.coder, max_tokens, tally)
        )
        return _Pass(epoch, reading, samples)

    def _rows(self, samples: list[Sample], epoch: int, index: int) -> list[Row]:
        settings = self.settings
        order = [
            shuffled(place, num_items=len(samples), seed=settings.seed, epoch=(epoch << 40) + index)
            for place in range(len(samples))
        ]
        mixed = [samples[place] for place in order]
        if settings.layout == "wrapped":
            mixed = wrap(mixed, settings.seq_len)
        arrays = [as_arrays(sample) for sample in mixed]
        lengths = [len(sample.inputs) for sample in mixed]
        rows = lay_out(lengths, seq_len=settings.seq_len, packed=settings.layout == "documents")
        ordered = shuffle_rows(rows, seed=settings.seed, epoch=epoch, index=index)
        return [[arrays[item] for item in row] for row in ordered]


def heldout_samples(
    stream: Stream, settings: StreamSettings, *, num_tokens: int, num_samples: int
) -> list[Sample]:
    """Read held-out samples from the front of a stream until there are enough.

    ``num_tokens``: about how many tokens are enough, in as many samples as follows.
    ``num_samples``: fewest samples, where there are as many.
    """
    origin, tally = stream.origin, Tally("skip")
    judged = origin.read_heldout
    items = origin.read() if judged is None else judged()
    split = stream.split if judged is None else Split(threshold=1 << 64, heldout=frozenset())
    parsed: Iterator[Parsed] = parse_items(items, stream.encoder, split, tally)
    kept = (item for item in parsed if item.is_heldout)
    max_tokens = NO_LIMIT if settings.layout == "wrapped" else settings.seq_len
    found: list[Sample] = []
    num_found = 0
    for made in encode_parsed(kept, stream.encoder, stream.coder, max_tokens, tally):
        found += checked(made, settings.vocab_size)
        num_found += sum(len(sample.inputs) for sample in made)
        if num_found >= num_tokens and len(found) >= num_samples:
            break
    if not found:
        raise DataError(
            f"{origin.words} holds no record to judge by; give more records, a larger "
            f"--heldout-share, or a file with --heldout"
        )
    return wrap(found, settings.seq_len) if settings.layout == "wrapped" else found


def wrap(samples: Sequence[Sample], seq_len: int) -> list[Sample]:
    """Cut texts, laid end to end, into whole sequences; the last is filled up and masked."""
    tokens = list(chain.from_iterable(sample.inputs for sample in samples))
    rows = []
    for start in range(0, len(tokens) - 1, seq_len):
        labels = tokens[start + 1 : start + seq_len + 1]
        masked = labels + [IGNORED] * (seq_len - len(labels))
        rows.append(Sample(tokens[start : start + seq_len], masked))
    return rows


def checked(samples: list[Sample], vocab_size: int) -> list[Sample]:
    """Return samples whose every token the model has a row for.

    Raises InputError: one has not.
    """
    for sample in samples:
        check_tokens(sample.inputs, vocab_size)
    return samples


def as_arrays(sample: Sample) -> Arrays:
    """Return a sample as arrays."""
    import numpy as np

    return Arrays(np.asarray(sample.inputs, np.int64), np.asarray(sample.labels, np.int64))


def _identity(row: Any) -> Row:
    return list(row)
