"""Models whose weights are not public: said so, and no open model is taken for one."""

import pytest

from brimful.models.closed import closed_words
from brimful.models.names import find, registry, unknown_model


@pytest.mark.parametrize(
    ("name", "maker"),
    [
        ("gpt-4o-mini", "OpenAI"),
        ("openai/gpt-5", "OpenAI"),
        ("gpt-3.5-turbo", "OpenAI"),
        ("chatgpt-4o-latest", "OpenAI"),
        ("gpt-4.1-mini", "OpenAI"),
        ("o1", "OpenAI"),
        ("o3-mini-high", "OpenAI"),
        ("claude-sonnet-4", "Anthropic"),
        ("Gemini-2.5-Pro", "Google"),
    ],
)
def test_a_closed_model_is_said_to_be_one(name, maker):
    assert closed_words(name).startswith(f"its weights are not public: {maker} alone trains it")
    assert "is no open model" in str(unknown_model(name, more=""))


@pytest.mark.parametrize("name", [
    "gpt2", "gpt-oss-20b", "gpt-neo-125m", "gpt4all-j", "olmo-2-7b", "openchat/gpt-3.5",
    "lmsys/gpt-4-vicuna-13b", "O1-OPEN/OpenO1-Qwen-7B", "o1-open-reproduction", "gpt-5b",
])  # fmt: skip
def test_an_open_model_is_none(name):
    assert not closed_words(name)


def test_what_is_proposed_instead_is_known():
    for name in ("gpt-4o", "claude", "gemini", "grok-4", "mistral-medium", "nova-pro", "qwen-max"):
        named = closed_words(name).partition("open models: ")[2]
        every = named.replace(" or ", ", ").split(", ")
        assert all(find(each) is not None or each in registry() for each in every)
