import pytest

from brimful.train.data.conversation import parse_conversation
from brimful.train.data.records import BadRecordError

TURNS = [("user", "how?"), ("assistant", "so.")]
SHAPES = {
    "messages": {"messages": [{"role": role, "content": text} for role, text in TURNS]},
    "text parts": {
        "messages": [
            {"role": role, "content": [{"type": "text", "text": text}]} for role, text in TURNS
        ]
    },
    "prompt and completion": {"prompt": "how?", "completion": "so."},
    "alpaca": {"instruction": "how?", "input": "", "output": "so."},
    "alpaca without input": {"instruction": "how?", "output": "so."},
    "sharegpt": {
        "conversations": [{"from": "human", "value": "how?"}, {"from": "gpt", "value": "so."}]
    },
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_shapes_that_people_bring_are_one(shape):
    messages = parse_conversation(SHAPES[shape], "messages").messages
    assert [(m["role"], m["content"]) for m in messages] == TURNS


def test_alpaca_input_follows_the_instruction_and_a_system_text_comes_first():
    fields = {"system": "be brief", "instruction": "add", "input": "1 2", "output": "3"}
    messages = parse_conversation(fields, "messages").messages
    assert [m["content"] for m in messages] == ["be brief", "add\n\n1 2", "3"]


def test_tools_and_calls_are_kept_for_the_template():
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    fields = {
        "tools": [{"name": "f"}],
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [call], "name": None},
        ],
    }
    conversation = parse_conversation(fields, "messages")
    assert conversation.tools == [{"name": "f"}]
    assert conversation.messages[1] == {"role": "assistant", "content": "", "tool_calls": [call]}


def test_the_field_of_the_messages_can_be_named():
    fields = {"talk": SHAPES["messages"]["messages"]}
    assert len(parse_conversation(fields, "talk").messages) == 2
    with pytest.raises(BadRecordError, match="it has no 'messages', no 'conversations'"):
        parse_conversation(fields, "messages")
