"""From an origin's records to parsed ones, told apart into those trained on and those held out."""

from array import array
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from brimful.train.data.coder import Coder
from brimful.train.data.encoders.base import Encoder, Sample
from brimful.train.data.origin import Items, Origin
from brimful.train.data.records import BadRecordError, Tally, describe_skipped, sound_records
from brimful.train.data.source import DataSource, OnBadRecord
from brimful.train.data.splitting import content_hash, plain_threshold, threshold

ALSO_HELD_OUT = "also in the held-out data"


class Parsed(NamedTuple):
    """A record that can be used.

    Attributes:
        content: What its encoder's ``parse`` kept of it.
        where: Its file and place.
        is_heldout: Whether it is there to judge by.
    """

    content: Any
    where: str
    is_heldout: bool


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """How records are told apart.

    Attributes:
        threshold: Records whose hash is below it are held out; 0: none.
        heldout: Hashes of records that a file of their own holds out.
    """

    threshold: int
    heldout: frozenset[int]


def choose_split(origin: Origin, encoder: Encoder, source: DataSource) -> Split:
    """Look at all records and choose those to hold out; neither part is empty.

    Raises DataError: all records are the same; or a bad record, where those end the run.
    """
    if origin.read_heldout is not None:
        return _given_split(origin, encoder)
    tally = Tally(source.on_bad_record)
    records = _parse(origin.read(), encoder, tally)
    hashes = array("Q", (content_hash(content) for content, _ in records))
    skipped = tally.skipped()
    left_out = f" (left out: {describe_skipped(skipped)})" if skipped else ""
    return Split(
        threshold=threshold(hashes, share=source.heldout_share, words=f"{origin.words}{left_out}"),
        heldout=frozenset(),
    )


def streamed_split(origin: Origin, encoder: Encoder, *, share: float) -> Split:
    """Choose by the hash alone, without looking at any record that is not held out."""
    if origin.read_heldout is not None:
        return _given_split(origin, encoder)
    return Split(threshold=plain_threshold(share), heldout=frozenset())


def _given_split(origin: Origin, encoder: Encoder) -> Split:
    assert origin.read_heldout is not None
    records = _parse(origin.read_heldout(), encoder, Tally("skip"))
    return Split(threshold=0, heldout=frozenset(content_hash(content) for content, _ in records))


def parsed_records(
    origin: Origin, encoder: Encoder, split: Split, tally: Tally
) -> Iterator[Parsed]:
    """Read all records, those of a held-out file last.

    Raises DataError: a bad record, where those end the run.
    """
    yield from parse_items(origin.read(), encoder, split, tally)
    if origin.read_heldout is not None:
        for content, where in _parse(origin.read_heldout(), encoder, tally):
            yield Parsed(content, where, is_heldout=True)


def parse_items(items: Items, encoder: Encoder, split: Split, tally: Tally) -> Iterator[Parsed]:
    """Parse the records that are trained on, and those of them that are held out."""
    for content, where in _parse(items, encoder, tally):
        hashed = content_hash(content)
        if hashed in split.heldout:
            tally.drop(where, ALSO_HELD_OUT)
        else:
            yield Parsed(content, where, hashed < split.threshold)


def encode_parsed(
    records: Iterable[Parsed], encoder: Encoder, coder: Coder, max_tokens: int, tally: Tally
) -> Iterator[list[Sample]]:
    """Make the samples of records, those of one record at a time.

    Raises DataError: a bad record, where those end the run.
    """
    for content, where, _ in records:
        try:
            made = encoder.encode(content, coder, max_tokens)
        except BadRecordError as error:
            tally.bad(where, error.reason, str(error))
            continue
        tally.num_truncated += made.truncated
        if made.dropped:
            tally.drop(where, made.dropped)
        else:
            yield made.samples


def training_texts(
    origin: Origin, encoder: Encoder, split: Split, on_bad_record: OnBadRecord
) -> Iterator[str]:
    """Yield every text of the records that are trained on, for a tokenizer to learn from."""
    for parsed in parsed_records(origin, encoder, split, Tally(on_bad_record)):
        if not parsed.is_heldout:
            yield from encoder.texts(parsed.content)


def _parse(items: Items, encoder: Encoder, tally: Tally) -> Iterator[tuple[Any, str]]:
    for record in sound_records(items, tally):
        try:
            content = encoder.parse(record.fields)
        except BadRecordError as error:
            tally.bad(record.where, error.reason, str(error))
        else:
            yield content, record.where
