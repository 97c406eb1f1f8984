"""Plain text: every token is learnt; a long text becomes several sequences, and none is lost."""

from collections.abc import Iterator
from typing import Any

from brimful.train.data.coder import Coder
from brimful.train.data.encoders.base import IGNORED, Encoded, Encoder, Sample, dropped
from brimful.train.data.records import string_field


def text_encoder(text_field: str) -> Encoder:
    """Make the encoder of records with a text."""

    def parse(fields: dict[str, Any]) -> str:
        return string_field(fields, text_field)

    return Encoder(needs=((text_field,),), parse=parse, texts=_texts, encode=_encode)


def _texts(text: str) -> Iterator[str]:
    yield text


def _encode(text: str, coder: Coder, max_tokens: int) -> Encoded:
    if not text:
        return dropped("empty text")
    ids = coder.document_ids(text)
    labels = [*ids[1:], IGNORED]
    # Shifted before it is cut: the last token of a piece learns the first of the next.
    pieces = [
        Sample(ids[start : start + max_tokens], labels[start : start + max_tokens])
        for start in range(0, len(ids) - 1, max_tokens)
    ]
    return Encoded(pieces, truncated=False, dropped="" if pieces else "a text of one token")
