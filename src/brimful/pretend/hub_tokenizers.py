"""Tokenizers of models of the hub that are not on this machine: words, or characters, for tokens.

One has as many rows as the model's embedding, and the special words that the model looks for in the
rows that its configuration names.
"""

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from brimful.pretend.hub_processors import Words, words_of

_WORDS_AT_LEAST = 1000
"""Rows of a vocabulary; of fewer they are bytes, as ByT5's 384 are."""
_SPLIT: dict[str, dict[str, Any]] = {
    "words": {"type": "Whitespace"},
    "marked words": {
        "type": "Split", "pattern": {"Regex": "<[^<>\\s]+>|\\w+|[^\\w\\s]+"},
        "behavior": "Removed", "invert": True,
    },
    "characters": {
        "type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": False,
    },
}  # fmt: skip
"""How a text is cut into what stands for tokens."""
_SPECIAL = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
_MASKED = {"cls_token": "<cls>", "sep_token": "<sep>", "mask_token": "<mask>"}
"""What a model that guesses hidden words has besides."""
_GUESSING = frozenset({
    "bert", "blip", "layoutlmv3", "mpnet", "vision-encoder-decoder", "xlm-roberta",
})  # fmt: skip
"""Kinds of models that learnt so, of which some were uploaded as encoders or classifiers, or whose
texts are cut as such a model's."""
_TOKENIZERS = {"layoutlmv3": "LayoutLMv3Tokenizer"}
"""Kinds of models whose tokenizers read more than words, as where they stand on a page."""
_POSITIONS = {
    "albert": 0, "bert": 0, "blip": 0, "camembert": 2, "clip": 0, "distilbert": 0, "electra": 0,
    "layoutlmv3": 2, "mpnet": 2, "roberta": 2, "siglip": 0, "vision-encoder-decoder": 0,
    "xlm-roberta": 2,
}  # fmt: skip
"""Kinds of models whose positions are a table, and how many of its rows no token takes."""
_PLACE = "{%- elif part['type'] in ('KIND', 'KIND_url') -%}{{ 'WORD' }}"
_TEMPLATE = (
    "{%- macro said(content) -%}{%- if content is string -%}{{ content }}{%- elif content -%}"
    "{%- for part in content -%}{%- if part['type'] == 'text' -%}{{ part['text'] }}"
    "PLACES{%- endif -%}{{ ' ' }}{%- endfor -%}{%- endif -%}{%- endmacro -%}"
    "{% for message in messages %}{{ '<s> ' + message['role'] + ' ' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ said(message['content']) + ' </s>' }}{% endgeneration %}"
    "{% else %}{{ said(message['content']) + ' </s>' }}{% endif %}{% endfor %}"
)
"""A chat template; what the model answers is marked in it, as losses over answers alone ask for,
and images, videos and sounds are the words that stand for them."""


def reads(built: Any) -> bool:
    """Whether a model has a vocabulary; what sees alone has none.

    ``built``: its configuration, as the library builds it.
    """
    return bool(_vocabulary(built))


def unit_of(built: Any) -> str:
    """Return what stands for a token: words, or characters where a vocabulary has no room.

    ``built``: a configuration, as the library builds it.
    """
    return "characters" if _vocabulary(built) < _WORDS_AT_LEAST else "words"


def write_tokenizer(folder: Path, built: Any, classes: Iterable[str]) -> None:
    """Write a tokenizer for a model.

    ``built``: its configuration, as the library builds it. ``classes``: that it was uploaded as.
    """
    kind, asked = built.model_type, words_of(built)
    is_masked = any(name.endswith("ForMaskedLM") for name in classes) or kind in _GUESSING
    named = {**_SPECIAL, **_MASKED} if is_masked else _SPECIAL
    special = _placed([*named.values()], asked)
    words = [special.get(i, f"w{i}") for i in range(max(_vocabulary(built), max(special) + 1))]
    added = [
        {"id": i, "content": word, "special": True, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False}
        for i, word in special.items()
    ]  # fmt: skip
    split = _SPLIT["marked words" if asked.named else unit_of(built)]
    made = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None, "pre_tokenizer": split, "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(words)},
                  "unk_token": named["unk_token"]},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(made), "utf-8")
    (folder / "chat_template.jinja").write_text(_template(asked), "utf-8")
    about: dict[str, Any] = {**named}
    about["tokenizer_class"] = _TOKENIZERS.get(kind, "PreTrainedTokenizerFast")
    if asked.named:
        about["extra_special_tokens"] = asked.named
    if (most_tokens := _most_tokens(built)) is not None:
        about["model_max_length"] = most_tokens
    (folder / "tokenizer_config.json").write_text(json.dumps(about), "utf-8")


def _placed(first: list[str], asked: Words) -> dict[int, str]:
    """Return special words by their rows: those of a configuration there, others where is room."""
    rows = {row: word for word, row in asked.rows.items() if row is not None}
    rest = [word for word, row in asked.rows.items() if row is None]
    free = (i for i in itertools.count() if i not in rows)
    return dict(zip(free, [*first, *rest], strict=False)) | rows


def _template(asked: Words) -> str:
    """Return a chat template with a processor's words for images, videos and sounds."""
    places = ""
    for kind, word in asked.places.items():
        if word:
            places += _PLACE.replace("KIND", kind).replace("WORD", word)
    return _TEMPLATE.replace("PLACES", places)


def _vocabulary(built: Any) -> int:
    """Return how many rows a model's embedding has, the text model's where it has several."""
    return int(getattr(built.get_text_config(decoder=True), "vocab_size", 0) or 0)


def _most_tokens(built: Any) -> int | None:
    """Return how many tokens a tokenizer cuts or fills a text to, where positions are a table."""
    behind = _POSITIONS.get(built.model_type)
    if behind is None:
        return None
    return int(built.get_text_config(decoder=True).max_position_embeddings) - behind
