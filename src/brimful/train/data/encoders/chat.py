"""Conversations: the whole is read, the assistant's answers are learnt."""

from collections.abc import Iterator
from typing import Any

from brimful.train.data.answers import mark_answers
from brimful.train.data.coder import Coder
from brimful.train.data.conversation import Conversation, conversation_needs, parse_conversation
from brimful.train.data.encoders.base import IGNORED, Encoded, Encoder, Sample, dropped


def chat_encoder(messages_field: str) -> Encoder:
    """Make the encoder of records with a conversation.

    ``messages_field``: its field, where it is a list of messages.
    """

    def parse(fields: dict[str, Any]) -> Conversation:
        return parse_conversation(fields, messages_field)

    return Encoder(
        needs=conversation_needs(messages_field), parse=parse, texts=_texts, encode=_encode
    )


def _texts(conversation: Conversation) -> Iterator[str]:
    for message in conversation.messages:
        yield message["content"]


def _encode(conversation: Conversation, coder: Coder, max_tokens: int) -> Encoded:
    ids, is_answer = mark_answers(conversation, coder)
    shifted = [
        token if learnt else IGNORED for token, learnt in zip(ids[1:], is_answer[1:], strict=True)
    ]
    labels = [*shifted, IGNORED][:max_tokens]
    truncated = len(ids) > max_tokens
    if all(label == IGNORED for label in labels):
        return dropped("no answer within seq_len", truncated=truncated)
    return Encoded([Sample(ids[:max_tokens], labels)], truncated, "")
