"""One row of the first step as plain text: what is read, and what of it is learnt."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from brimful.errors import InputError
from brimful.text.escaping import visible_line
from brimful.train.data.batches import START
from brimful.train.data.encoders.base import IGNORED
from brimful.train.data.prepare import Prepared
from brimful.train.data.rows import Answer
from brimful.train.data.sample_batches import SampleBatches

if TYPE_CHECKING:
    from brimful.build.batch import Batch

_LEARNT, _READ = " loss | ", "      | "
MIN_WIDTH = 20
_ANSWER = 2
"""Segment of what is scored of a pair (``brimful.build.batch.ANSWER``, which needs torch)."""


class _Token(NamedTuple):
    """A token of the row: its document, whether it is learnt, its id."""

    document: int
    is_learnt: bool
    token: int


def preview(prepared: Prepared, *, number: int, width: int) -> str:
    r"""Show a row as the model sees it, its special tokens spelt out.

    ``number``: which row of the first step, from 1. Returns lines; those that begin with ``loss``
    hold the tokens that the model learns to write. A line end of the text is shown as ``\n``.
    """
    if prepared.coder is None:
        raise InputError("a module's samples are no text; there is nothing to preview")
    batches, _ = prepared.batches.step_at(START)
    rows = [(batch, row) for batch in batches for row in range(len(batch.inputs))]
    if not 1 <= number <= len(rows):
        raise InputError(f"the first step has {len(rows)} rows and {number} is none; give another")
    batch, row = rows[number - 1]
    columns = max(MIN_WIDTH, width - len(_READ))
    if _answer_kind(prepared) == "pair":
        return "\n".join(_pair(prepared, batch, row, columns))
    tokens = _tokens(batch, row, is_masked=_answer_kind(prepared) == "tokens")
    lines = [*_title(prepared, batch, row, tokens), ""]
    for document, members in groupby(tokens, key=lambda token: token.document):
        if tokens[-1].document > 1:
            lines.append(f"document {document}")
        lines += _paragraphs(prepared, list(members), columns)
    return "\n".join([*lines, *_answer(prepared, batch, row, columns)])


def _tokens(batch: "Batch", row: int, *, is_masked: bool) -> list[_Token]:
    """List the tokens of a row; one is learnt where the label of the one before it says so."""
    inputs = batch.inputs[row].tolist()
    documents = [1] * len(inputs) if batch.segments is None else batch.segments[row].tolist()
    labels = batch.labels[row].tolist() if is_masked else [IGNORED] * len(inputs)
    return [
        _Token(
            documents[place],
            place > 0 and labels[place - 1] != IGNORED and documents[place - 1] == documents[place],
            token,
        )
        for place, token in enumerate(inputs)
        if documents[place]
    ]


def _pair(prepared: Prepared, batch: "Batch", row: int, columns: int) -> Iterator[str]:
    """Show both rows of a pair; what is scored of either is marked as learnt."""
    assert batch.segments is not None  # of pairs they say what the answers are
    if prepared.summary.template:
        yield f"template of lists of messages: {prepared.summary.template}"
    for side, name in enumerate(("chosen", "rejected")):
        inputs, segments = batch.inputs[row, side].tolist(), batch.segments[row, side].tolist()
        tokens = [
            _Token(1, segment == _ANSWER, token)
            for token, segment in zip(inputs, segments, strict=True)
            if segment
        ]
        num_scored = sum(token.is_learnt for token in tokens)
        padding = len(inputs) - len(tokens)
        yield from ("", f"{name}: {len(tokens)} tokens, {num_scored} scored, {padding} of padding")
        yield from _paragraphs(prepared, tokens, columns)


def _answer_kind(prepared: Prepared) -> Answer:
    batches = prepared.batches
    return batches.shape.answer if isinstance(batches, SampleBatches) else "tokens"


def _title(prepared: Prepared, batch: "Batch", row: int, tokens: Sequence[_Token]) -> Iterator[str]:
    num_learnt = int((batch.labels[row] != IGNORED).sum())
    padding = batch.inputs.shape[1] - len(tokens)
    what = "label" if _answer_kind(prepared) == "class" else "with loss"
    yield f"{len(tokens)} tokens, {num_learnt} {what}, {padding} of padding"
    if prepared.summary.template:
        yield f"template: {prepared.summary.template}"


def _paragraphs(prepared: Prepared, tokens: Sequence[_Token], columns: int) -> Iterator[str]:
    for is_learnt, members in groupby(tokens, key=lambda token: token.is_learnt):
        text = _decode(prepared, [token.token for token in members])
        yield from _lines(text, _LEARNT if is_learnt else _READ, columns)


def _answer(prepared: Prepared, batch: "Batch", row: int, columns: int) -> Iterator[str]:
    if _answer_kind(prepared) == "class":
        yield f"{_LEARNT}class {int(batch.labels[row])}"
    elif _answer_kind(prepared) == "target":
        yield "target"
        ids = [token for token in batch.labels[row].tolist() if token != IGNORED]
        yield from _lines(_decode(prepared, ids), _LEARNT, columns)


def _decode(prepared: Prepared, ids: list[int]) -> str:
    assert prepared.coder is not None
    text: str = prepared.coder.tokenizer.decode(
        ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    return text


def _lines(text: str, margin: str, columns: int) -> Iterator[str]:
    for line in text.splitlines(keepends=True):
        # Escape sequences of the data must not reach the terminal as such.
        shown = visible_line(line)
        for start in range(0, len(shown), columns):
            yield margin + shown[start : start + columns]
