"""Conversations, in the shapes that people bring them in. Knows no tokenizer."""

from typing import Any, NamedTuple

from brimful.train.data.records import BadRecordError, kind_of, string_field

SHARE_GPT = "conversations"
PROMPT = ("prompt", "completion")
ALPACA = ("instruction", "output")
_ROLES = ("system", "developer", "user", "assistant", "tool")
_ROLE_OF = {
    **{role: role for role in _ROLES},
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "function": "tool",
    "observation": "tool",
}

Message = dict[str, Any]


class Conversation(NamedTuple):
    """Who said what.

    Attributes:
        messages: As chat templates take them, with ``role`` and ``content``.
        tools: Descriptions of tools, for templates that know them; None: there are none.
        first_answer: Assistant's messages before this one are read, not learnt.
    """

    messages: list[Message]
    tools: list[Any] | None
    first_answer: int


def conversation_needs(messages_field: str) -> tuple[tuple[str, ...], ...]:
    """List the sets of fields of which one makes a conversation."""
    return ((messages_field,), (SHARE_GPT,), PROMPT, ALPACA)


def parse_conversation(fields: dict[str, Any], messages_field: str) -> Conversation:
    """Read a conversation from whichever shape a record has.

    ``fields``: the record: messages, ShareGPT's conversations, prompt and completion, or Alpaca's
    instruction, input and output.
    """
    messages, first_answer = _messages(fields, messages_field)
    if not messages:
        raise BadRecordError("no messages", "its conversation has no messages")
    answers = [m for m in messages[first_answer:] if m["role"] == "assistant"]
    if not answers:
        raise BadRecordError("no assistant turn", "no message in it is the assistant's")
    if not any(m.get("content") or m.get("tool_calls") for m in answers):
        raise BadRecordError("empty answers", "every message of the assistant's in it is empty")
    tools = fields.get("tools")
    return Conversation(
        messages, tools if isinstance(tools, list) and tools else None, first_answer
    )


def _messages(fields: dict[str, Any], messages_field: str) -> tuple[list[Message], int]:
    for name in (messages_field, SHARE_GPT):
        if name in fields:
            return listed_messages(fields[name], name), 0
    if set(PROMPT) <= set(fields):
        prompt, completion = (
            _side(fields, name, role)
            for name, role in zip(PROMPT, ("user", "assistant"), strict=True)
        )
        return prompt + completion, len(prompt)
    if set(ALPACA) <= set(fields):
        question = string_field(fields, "instruction")
        if fields.get("input"):
            question = f"{question}\n\n{string_field(fields, 'input')}"
        system = fields.get("system")
        begin = [{"role": "system", "content": string_field(fields, "system")}] if system else []
        answer = string_field(fields, "output")
        return [
            *begin,
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ], 0
    shapes = [" and ".join(map(repr, need)) for need in conversation_needs(messages_field)]
    raise BadRecordError("no conversation", f"it has no {', no '.join(shapes)}")


def _side(fields: dict[str, Any], name: str, role: str) -> list[Message]:
    if isinstance(fields[name], list):
        return listed_messages(fields[name], name)
    return [{"role": role, "content": string_field(fields, name)}]


def listed_messages(value: Any, name: str) -> list[Message]:
    """Read a list of messages."""
    if not isinstance(value, list):
        raise BadRecordError(
            f"field {name!r} is no list", f"field {name!r} is {kind_of(value)} and must be a list"
        )
    return [_message(item, f"message {number}") for number, item in enumerate(value, start=1)]


def _message(item: Any, where: str) -> Message:
    if not isinstance(item, dict):
        raise BadRecordError(
            "a message is no object", f"{where} is {kind_of(item)} and must be an object"
        )
    role_key, content_key = ("role", "content") if "role" in item else ("from", "value")
    role = item.get(role_key)
    if role not in _ROLE_OF:
        known = ", ".join(_ROLES)
        raise BadRecordError("unknown role", f"{where} has the role {role!r}; known are {known}")
    more = {
        key: value
        for key, value in item.items()
        if key not in (role_key, content_key) and value is not None
    }
    content = _content(item.get(content_key), where, may_lack="tool_calls" in more)
    return {"role": _ROLE_OF[role], "content": content, **more}


def _content(value: Any, where: str, *, may_lack: bool) -> str:
    if value is None and may_lack:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(_is_text_part(part) for part in value):
        return "".join(part["text"] for part in value)
    raise BadRecordError(
        "a message's content is no text",
        f"the content of {where} is {kind_of(value)} and must be text",
    )


def _is_text_part(part: Any) -> bool:
    return (
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    )
