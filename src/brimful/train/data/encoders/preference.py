"""Pairs of answers to one question, the preferred one first: TRL's formats of preferences.

Texts (``prompt``, ``chosen``, ``rejected``) are laid end to end and closed with the token that ends
a text. Lists of messages go through the chat template, and what is scored are the assistant's
turns, as in a chat. Where the prompt is missing, or is a text beside lists that hold it already, it
is what both answers begin with.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from brimful.train.data.answers import Marked, mark_answers
from brimful.train.data.coder import Coder
from brimful.train.data.conversation import Conversation, Message, listed_messages
from brimful.train.data.encoders.base import Encoded, Encoder, Sample, dropped
from brimful.train.data.records import BadRecordError, kind_of, string_field

PROMPT, CHOSEN, REJECTED = "prompt", "chosen", "rejected"
READ_CHOSEN, READ_REJECTED = -1, -2
"""Labels of the tokens that are only read, in the row of either answer."""
SCORED_CHOSEN, SCORED_REJECTED = 0, 1
"""Labels of the tokens of either answer. A sample is both rows, one behind the other."""


class Texts(NamedTuple):
    """A question and two answers, as plain text."""

    prompt: str
    chosen: str
    rejected: str


class Talks(NamedTuple):
    """Two conversations that begin alike."""

    chosen: Conversation
    rejected: Conversation


def preference_encoder() -> Encoder:
    """Make the encoder of records with a question and two answers."""
    return Encoder(needs=((CHOSEN, REJECTED),), parse=_parse, texts=_texts, encode=_encode)


def _parse(fields: dict[str, Any]) -> Texts | Talks:
    for name in (CHOSEN, REJECTED):
        if name not in fields:
            raise BadRecordError(f"no field {name!r}", f"it has no field {name!r}")
    kinds = {isinstance(fields[name], list) for name in (CHOSEN, REJECTED)}
    if kinds == {True}:
        return _talks(fields)
    if kinds == {False}:
        return _plain(fields)
    raise BadRecordError(
        "answers of two kinds",
        f"field {CHOSEN!r} is {kind_of(fields[CHOSEN])} and field {REJECTED!r} is "
        f"{kind_of(fields[REJECTED])}; both must be text, or both lists of messages",
    )


def _plain(fields: dict[str, Any]) -> Texts:
    chosen, rejected = string_field(fields, CHOSEN), string_field(fields, REJECTED)
    if fields.get(PROMPT) is not None:
        prompt = string_field(fields, PROMPT)
    else:
        prompt = chosen[: _num_alike(chosen, rejected)]
        # A word that only begins alike belongs to the answers.
        prompt = prompt[: len(prompt) - len(prompt.split(" ")[-1])] if " " in prompt else ""
        chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
    for name, text in ((CHOSEN, chosen), (REJECTED, rejected)):
        if not text:
            raise BadRecordError("an empty answer", f"field {name!r} holds no answer")
    return Texts(prompt, chosen, rejected)


def _talks(fields: dict[str, Any]) -> Talks:
    chosen, rejected = (listed_messages(fields[name], name) for name in (CHOSEN, REJECTED))
    prompt: list[Message] = []
    if isinstance(fields.get(PROMPT), list):
        prompt = listed_messages(fields[PROMPT], PROMPT)
        num_read = len(prompt)
    else:
        num_read = _num_alike(chosen, rejected)
        if not num_read and fields.get(PROMPT) is not None:
            prompt = [{"role": "user", "content": string_field(fields, PROMPT)}]
            num_read = 1
    tools = fields.get("tools")
    given = tools if isinstance(tools, list) and tools else None
    return Talks(*(
        _checked(Conversation(prompt + answer, given, num_read), name)
        for answer, name in ((chosen, CHOSEN), (rejected, REJECTED))
    ))  # fmt: skip


def _checked(talk: Conversation, name: str) -> Conversation:
    answers = [m for m in talk.messages[talk.first_answer :] if m["role"] == "assistant"]
    if not any(m.get("content") or m.get("tool_calls") for m in answers):
        raise BadRecordError("an empty answer", f"field {name!r} holds no answer of the assistant")
    return talk


def _num_alike(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Count the items that two sequences begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def _texts(pair: Texts | Talks) -> Iterator[str]:
    if isinstance(pair, Texts):
        yield from pair
        return
    for message in (*pair.chosen.messages, *pair.rejected.messages):
        yield message["content"]


def _encode(pair: Texts | Talks, coder: Coder, max_tokens: int) -> Encoded:
    if pair[-2] == pair[-1]:
        return dropped("the two answers are the same")
    chosen, rejected = _rows(pair, coder)
    truncated = max(len(chosen.ids), len(rejected.ids)) > max_tokens
    kept = [(row.ids[:max_tokens], row.is_answer[:max_tokens]) for row in (chosen, rejected)]
    # The first token of a row is predicted by nothing.
    if not all(any(is_answer[1:]) for _, is_answer in kept):
        return dropped("no answer within seq_len", truncated=truncated)
    labels = [
        scored if is_answer else read
        for (_, answers), scored, read in zip(
            kept,
            (SCORED_CHOSEN, SCORED_REJECTED),
            (READ_CHOSEN, READ_REJECTED),
            strict=True,
        )
        for is_answer in answers
    ]
    ids = [token for tokens, _ in kept for token in tokens]
    return Encoded([Sample(ids, labels)], truncated, "")


def _rows(pair: Texts | Talks, coder: Coder) -> tuple[Marked, Marked]:
    if isinstance(pair, Talks):
        return mark_answers(pair.chosen, coder), mark_answers(pair.rejected, coder)
    return (
        _mark_text(pair.prompt, pair.chosen, coder),
        _mark_text(pair.prompt, pair.rejected, coder),
    )


def _mark_text(prompt: str, answer: str, coder: Coder) -> Marked:
    """Write a question and an answer in tokens; one that holds some of the answer is scored."""
    encoded = coder.tokenizer(
        prompt + answer,
        add_special_tokens=False,
        split_special_tokens=coder.is_own,
        return_offsets_mapping=True,
    )
    begin, end = coder.marks()
    scored = [stop > len(prompt) for _, stop in encoded["offset_mapping"]]
    return Marked(
        [*begin, *encoded["input_ids"], *end],
        [*(False for _ in begin), *scored, *(True for _ in end)],
    )
