"""Which characters of a conversation, and so which of its tokens, are the assistant's answers."""

import re
from typing import NamedTuple

from brimful.train.data.coder import Coder
from brimful.train.data.conversation import Conversation, Message
from brimful.train.data.records import BadRecordError

_MARKERS = re.compile(r"\{%-?\s*generation\s*-?%\}")

Span = tuple[int, int]


class Rendered(NamedTuple):
    """A conversation as its template writes it.

    Attributes:
        text: The text.
        answers: First character of each answer, and the one after its last.
    """

    text: str
    answers: list[Span]


class Marked(NamedTuple):
    """Tokens of a conversation.

    Attributes:
        ids: The tokens.
        is_answer: For each, whether it is part of an answer.
    """

    ids: list[int]
    is_answer: list[bool]


def has_markers(template: str) -> bool:
    """Say whether a template marks the answers itself, with ``{% generation %}``."""
    return _MARKERS.search(template) is not None


def mark_answers(conversation: Conversation, coder: Coder) -> Marked:
    """Write a conversation in tokens and tell the answers' from the others.

    A token is an answer's if any of its characters is. ``transformers``' own
    ``return_assistant_tokens_mask`` is not taken: where the last character of an answer belongs to
    no token it marks everything that follows.

    Raises BadRecordError: the template refuses the conversation, or does not tell where answers
    are.
    """
    rendered = render(conversation, coder)
    encoded = coder.tokenizer(rendered.text, add_special_tokens=False, return_offsets_mapping=True)
    is_answer = [False] * len(encoded["input_ids"])
    spans = iter(rendered.answers)
    start, stop = next(spans, (0, 0))
    for place, (first, after) in enumerate(encoded["offset_mapping"]):
        while first >= stop > 0:
            start, stop = next(spans, (0, 0))
        # Bytes of one character, and blanks that a tokenizer trims away, may have no width.
        is_answer[place] = first < stop and max(after, first + 1) > start
    return Marked(encoded["input_ids"], is_answer)


def render(conversation: Conversation, coder: Coder) -> Rendered:
    """Write a conversation as text and find the answers in it."""
    if has_markers(coder.template):
        text, spans = _apply(coder, conversation, conversation.messages, marked=True)
    else:
        text, spans = _by_prefixes(conversation, coder)
    learnt = _learnt(conversation, spans)
    if not any(stop > start for start, stop in learnt):
        raise BadRecordError("no answer in the template", "the chat template marks no answer in it")
    return Rendered(text, learnt)


def _learnt(conversation: Conversation, spans: list[Span]) -> list[Span]:
    """Leave out the answers that are only read."""
    if not conversation.first_answer:
        return spans
    places = [n for n, message in enumerate(conversation.messages) if _is_answer(message)]
    if len(places) != len(spans):
        raise BadRecordError(
            "answers cannot be told apart",
            f"the chat template marks {len(spans)} answers of {len(places)}, so that those in the "
            f"prompt cannot be told from those in the completion",
        )
    pairs = zip(places, spans, strict=True)
    return [span for place, span in pairs if place >= conversation.first_answer]


def _by_prefixes(conversation: Conversation, coder: Coder) -> tuple[str, list[Span]]:
    """Find answers by what the template writes before and after them."""
    messages = conversation.messages
    text, _ = _apply(coder, conversation, messages)
    spans = []
    for place, message in enumerate(messages):
        if _is_answer(message):
            before, _ = _apply(coder, conversation, messages[:place], prompt=True)
            after, _ = _apply(coder, conversation, messages[: place + 1])
            if not (text.startswith(after) and after.startswith(before)):
                raise BadRecordError(
                    "the template rewrites earlier turns",
                    f"the chat template writes the turns up to message {place + 1} differently "
                    f"once others follow, so that where the answer begins and ends is unknown; "
                    f"give a template with {{% generation %}} markers (--chat-template)",
                )
            spans.append((len(before), _end(after, len(before), coder)))
    return text, spans


def _end(after: str, start: int, coder: Coder) -> int:
    """End an answer with the token that ends it, not with the line end that follows that."""
    cut = after[start:].rstrip()
    marks = tuple(coder.tokenizer.get_added_vocab())
    return start + len(cut) if marks and cut.endswith(marks) else len(after)


def _apply(
    coder: Coder,
    conversation: Conversation,
    messages: list[Message],
    *,
    prompt: bool = False,
    marked: bool = False,
) -> tuple[str, list[Span]]:
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        texts, spans = render_jinja_template(
            conversations=[messages],
            tools=conversation.tools,
            chat_template=coder.template,
            add_generation_prompt=prompt,
            return_assistant_tokens_mask=marked,
            **coder.tokenizer.special_tokens_map,
        )
    except (TemplateError, TypeError, ValueError, KeyError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise BadRecordError(
            "refused by the chat template", f"the chat template refuses it ({reason})"
        ) from error
    return texts[0], [(int(span[0]), int(span[1])) for span in spans[0]] if marked else []


def _is_answer(message: Message) -> bool:
    return bool(message["role"] == "assistant")
