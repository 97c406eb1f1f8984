"""Models whose weights nobody but their makers has, by the names that people type. No torch."""

import re
from typing import NamedTuple

from brimful.models.name_parts import split_publisher


class _Maker(NamedTuple):
    """Who keeps the weights, how the names begin, and open models of the same use."""

    name: str
    names: re.Pattern[str]
    instead: str


_MAKERS = (
    _Maker(
        "OpenAI",
        re.compile(r"(chat)?gpt[- ]?(3\.5|4(?!all)|5)|o[134]\b|text-(davinci|embedding-3|ada)"),
        "gpt-oss-20b, qwen3-8b or llama-3.1-8b",
    ),
    _Maker("Anthropic", re.compile(r"claude\b"), "qwen3-32b, gpt-oss-120b or llama-3.3-70b"),
    _Maker("Google", re.compile(r"gemini\b|palm[- ]?2|bard\b"), "gemma-3-12b or gemma-3-27b"),
    _Maker("xAI", re.compile(r"grok[- ]?[34]\b"), "qwen3-32b or llama-3.3-70b"),
    _Maker("Mistral", re.compile(r"mistral-medium"), "mistral-small-3.2-24b or mistral-nemo-12b"),
    _Maker("Amazon", re.compile(r"(amazon[- ])?nova[- ](micro|lite|pro|premier)"), "qwen3-8b"),
    _Maker("Alibaba", re.compile(r"qwen[\d.]*-max"), "qwen3-235b-a22b or qwen3-32b"),
)


def closed_words(text: str) -> str:
    """Say that a model's weights are not public, and which open ones there are; empty: unknown.

    Args:
        text: As it was typed.
    """
    name = split_publisher(text)[1].lower()
    for maker in _MAKERS:
        if maker.names.match(name):
            return (
                f"{maker.name} gives its weights to nobody, so that it trains on no GPU of yours; "
                f"open models: {maker.instead}"
            )
    return ""
