"""Models whose weights nobody but their makers has, by the names that people type. No torch."""

import re
from typing import NamedTuple

from brimful.models.name_parts import split_publisher


class _Maker(NamedTuple):
    """Who keeps the weights, as whom they publish, how names begin, and open models of that use."""

    name: str
    publishers: frozenset[str]
    names: str
    instead: str


_MAKERS = (
    _Maker(
        "OpenAI",
        frozenset({"openai"}),
        r"(chat)?gpt[- ]?(3\.5|4[ov]?|5)|text-(davinci|embedding-3|ada)"
        r"|o[134]([- ](mini|preview|pro|high|low|deep|research|\d+))*$",
        "gpt-oss-20b, qwen3-8b or llama-3.1-8b",
    ),
    _Maker(
        "Anthropic", frozenset({"anthropic"}), "claude", "qwen3-32b, gpt-oss-120b or llama-3.3-70b"
    ),
    _Maker(
        "Google", frozenset({"google"}), r"gemini|palm[- ]?2|bard", "gemma-3-12b or gemma-3-27b"
    ),
    _Maker("xAI", frozenset({"xai-org"}), r"grok[- ]?[34]", "qwen3-32b or llama-3.3-70b"),
    _Maker(
        "Mistral",
        frozenset({"mistralai"}),
        "mistral-medium",
        "mistral-small-3.2-24b or mistral-nemo-12b",
    ),
    _Maker(
        "Amazon",
        frozenset({"amazon"}),
        r"(amazon[- ])?nova[- ](micro|lite|pro|premier)",
        "qwen3-8b",
    ),
    _Maker(
        "Alibaba",
        frozenset({"alibaba", "qwen"}),
        r"qwen[\d.]*-max",
        "qwen3-235b-a22b or qwen3-32b",
    ),
)


def closed_words(text: str) -> str:
    """Say that a model's weights are not public, and which open ones there are; empty: unknown."""
    publisher, name = split_publisher(text)
    for maker in _MAKERS:
        is_theirs = publisher in {"", *maker.publishers}  # others name what they tuned after it
        if is_theirs and re.match(rf"(?:{maker.names})\b", name, re.IGNORECASE):
            return (
                f"its weights are not public: {maker.name} alone trains it; open models: "
                f"{maker.instead}"
            )
    return ""
