"""Labelled text: one class per text."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from brimful.train.data.coder import Coder
from brimful.train.data.encoders.base import Encoded, Encoder, Sample
from brimful.train.data.records import BadRecordError, kind_of, string_field

DEFAULT_NUM_CLASSES = 2
"""As ``transformers.PreTrainedConfig``."""


class Labelled(NamedTuple):
    """A text and the number of its class."""

    text: str
    label: int


def labelled_encoder(text_field: str, label_field: str, config: dict[str, Any]) -> Encoder:
    """Make the encoder of records with a text and a class.

    ``label_field``: field of the class: its number, or its name where the model names classes.
    ``config``: the model's configuration, which says how many classes there are.
    """
    names = class_names(config)

    def parse(fields: dict[str, Any]) -> Labelled:
        text = string_field(fields, text_field)
        if label_field not in fields:
            raise BadRecordError(f"no field {label_field!r}", f"it has no field {label_field!r}")
        return Labelled(text, _label(fields[label_field], label_field, names))

    return Encoder(
        needs=((text_field, label_field),),
        parse=parse,
        texts=_texts,
        encode=_encode,
        identity=names,
    )


def class_names(config: dict[str, Any]) -> tuple[str, ...]:
    """List the classes of a model by its configuration; without names they are numbers."""
    by_number = config.get("id2label") or {}
    if by_number:
        return tuple(str(by_number[key]) for key in sorted(by_number, key=int))
    return tuple(map(str, range(config.get("num_labels") or DEFAULT_NUM_CLASSES)))


def _label(value: Any, field: str, names: tuple[str, ...]) -> int:
    number = value
    if isinstance(value, str):
        if value in names:
            return names.index(value)
        # A CSV file knows text only.
        number = int(value) if value.strip().isascii() and value.strip().isdigit() else value
    if not isinstance(number, int) or isinstance(number, bool):
        known = ", ".join(names[:8])
        said = repr(value) if isinstance(value, str) else kind_of(value)
        raise BadRecordError(
            "unknown class", f"field {field!r} is {said} and must be a class ({known})"
        )
    if not 0 <= number < len(names):
        raise BadRecordError(
            "class out of range",
            f"field {field!r} is {number} and the model has {len(names)} classes; "
            f"the last is {len(names) - 1}",
        )
    return number


def _texts(labelled: Labelled) -> Iterator[str]:
    yield labelled.text


def _encode(labelled: Labelled, coder: Coder, max_tokens: int) -> Encoded:
    ids, truncated = coder.framed_ids(labelled.text, max_tokens=max_tokens)
    if not ids:
        raise BadRecordError("empty text", "its text is empty")
    return Encoded([Sample(ids, [labelled.label])], truncated, "")
