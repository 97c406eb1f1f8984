"""Of models that read images or sounds: which known model their language part has the blocks of.

Data, in one file of names. A name means one of them where its words stand in it, in their order,
and what else it says is no size, no version, no other language model and no other network.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import msgspec

from brimful.models.name_parts import (
    DROPPED,
    LONGEST,
    REVISION,
    points_for_dashes,
    spaced,
    split_publisher,
)
from brimful.models.registry import registry

_FILE = "data/language_parts.json"
_TELLS = re.compile(r"\d{1,2}(?:\.\d+)?|\d+(?:\.\d+)?[mbt]|\d+x\d+(?:\.\d+)?b|[ae]\d+(?:\.\d+)?b")
"""What of a name says that it is another model: a version, a size, how much of it is active."""
_SEES = re.compile(
    r"llava|vila(?![a-z])|intern-?vl|pali-?gemma|idefics|smol-?vlm|vlm|-vl(?![a-z])|pixtral|molmo"
    r"|minicpm-?v|moondream|fuyu|blip|kosmos|aya-?vision|vision|glm-?4\.?\d?v|ovis|chameleon|bunny"
    r"|ultravox|voxtral|audio|omni"
)
"""Families and words of models that read images or sounds, whose encoder comes on top."""
_SENSES = re.compile(
    r"(?:^|_)(?:vision|visual|audio|speech|image|img|video|mm)(?:_|$)"
    r"|^(?:text|llm|language)_(?:config|cfg)$"
)
"""Fields of such models' configurations, of whichever library."""
_NETWORKS = frozenset(
    {
        "adapter", "adapters", "animate", "avatar", "controlnet", "controlnets", "decoder",
        "encoder", "encoders", "foley", "iclora", "lora", "loras", "lycoris", "redux", "s2v",
        "taesd", "tokenizer", "vace", "vae", "vqvae",
    }
)  # fmt: skip
"""Words of names of networks that are beside a model, are laid over it or were built out of it."""


class _Family(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Models of one table.

    Attributes:
        of: What they are called together.
        source: Where their language parts are named.
        parts: Names, and the registry's models that they are built upon.
        beside: What there is beside encoders and their images; empty: nothing.
    """

    of: str
    source: str
    parts: dict[str, str]
    beside: str = ""


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    families: tuple[_Family, ...]


class Part(NamedTuple):
    """The language part of a model.

    Attributes:
        of: The model's name in the table.
        model: The registry's model whose blocks it has.
        beside: What there is beside encoders and their images; empty: nothing.
    """

    of: str
    model: str
    beside: str


@cache
def language_parts() -> dict[str, Part]:
    """Return all that are known, by the names of the models they are of."""
    file = msgspec.json.decode(files("brimful").joinpath(_FILE).read_bytes(), type=_File)
    return {
        name: Part(name, model, family.beside)
        for family in file.families
        for name, model in family.parts.items()
    }


def find_part(text: str) -> Part | None:
    """Return the language part of the model that a name means; None: it is of none of these.

    ``text``: as it was typed: a name of any spelling, a hub id.
    """
    name = split_publisher(text)[1][:LONGEST]
    found = best_named(name, language_parts(), is_spare=_is_spare)
    return language_parts()[found] if found else None


def _is_spare(token: str, known: str) -> bool:
    """Whether a word may stand beside a name of the table: the language part's own may."""
    return not is_of_other(token) or token in spaced(language_parts()[known].model).split()


def sees(text: str) -> bool:
    """Whether a name is that of a model that reads images or sounds too."""
    return bool(_SEES.search(text.lower()))


def says_it_sees(config: dict[str, Any]) -> bool:
    """Whether a configuration says itself, by its type or a field, that its model sees or hears."""
    model_type = str(config.get("model_type")).replace("_", "-")
    return sees(model_type) or any(_SENSES.search(field) for field in config)


def is_of_other(token: str) -> bool:
    """Whether a word says of a name that another model is meant: a language model, a network."""
    return token in _NETWORKS or token in _language_models()


def best_named(
    name: str,
    known: Iterable[str],
    *,
    is_spare: Callable[[str, str], bool],
    dropped: frozenset[str] = DROPPED,
) -> str:
    """Return the longest of some names whose words are those of another; empty: there is none.

    ``name``: as it was typed, without who publishes it. ``is_spare``: whether a word of it may
    stand beside those of a known name. ``dropped``: words that are not looked at.
    """
    typed = (_tokens(name, dropped), _tokens(points_for_dashes(name), dropped))

    def is_named(each: str) -> bool:
        besides = (_beside(given, known_tokens(each, dropped)) for given in typed)
        return any(
            beside is not None and all(is_spare(token, each) for token in beside)
            for beside in besides
        )

    return max(
        filter(is_named, known), key=lambda each: len(known_tokens(each, dropped)), default=""
    )


def _beside(given: Sequence[str], known: Sequence[str]) -> list[str] | None:
    """List what a name says beside another; None: it begins otherwise, lacks a word or is sized."""
    if given[:1] != known[:1]:
        return None
    rest, beside = list(known), []
    for token in given:
        if rest and token in {rest[0], f"v{rest[0]}"}:
            rest.pop(0)
        elif is_told(token):
            return None
        else:
            beside.append(token)
    return None if rest else beside


def is_told(token: str) -> bool:
    """Whether a word of a name is a version, a size or how much of it is active."""
    return _TELLS.fullmatch(token) is not None


@cache
def known_tokens(name: str, dropped: frozenset[str] = DROPPED) -> tuple[str, ...]:
    """Return the words of a known name, its versions without their letter."""
    return tuple(
        token.removeprefix("v") if REVISION.fullmatch(token) else token
        for token in _tokens(name, dropped)
    )


@cache
def _language_models() -> frozenset[str]:
    """Return the words that the names of known language models begin with."""
    return frozenset(spaced(known).split()[0] for known in registry()) - DROPPED


def _tokens(name: str, dropped: frozenset[str]) -> tuple[str, ...]:
    return tuple(token for token in spaced(name).split() if token not in dropped)
