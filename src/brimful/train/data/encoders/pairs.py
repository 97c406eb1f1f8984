"""Pairs for seq2seq: a source that is read, a target that is written."""

from typing import Any, NamedTuple

from brimful.train.data.coder import Coder
from brimful.train.data.encoders.base import Encoded, Encoder, Sample
from brimful.train.data.records import BadRecordError, string_field


class Pair(NamedTuple):
    """What is read and what is written."""

    source: str
    target: str


def pair_encoder(source_field: str, target_field: str) -> Encoder:
    """Make the encoder of records with a source and a target."""

    def parse(fields: dict[str, Any]) -> Pair:
        pair = Pair(string_field(fields, source_field), string_field(fields, target_field))
        for name, text in zip((source_field, target_field), pair, strict=True):
            if not text:
                raise BadRecordError(f"field {name!r} is empty")
        return pair

    return Encoder(needs=((source_field, target_field),), parse=parse, texts=iter, encode=_encode)


def _encode(pair: Pair, coder: Coder, max_tokens: int) -> Encoded:
    source, cut_source = coder.framed_ids(pair.source, max_tokens=max_tokens)
    # Write a target; it ends with the token that ends a text, whatever the tokenizer adds.
    ids = coder.text_ids(pair.target)
    end = [] if coder.end_id is None else [coder.end_id]
    room = max_tokens - len(end)
    target, cut_target = ([*ids[:room], *end], len(ids) > room)
    return Encoded([Sample(source, target)], cut_source or cut_target, "")
