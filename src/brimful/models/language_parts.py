"""Of models that read images or sounds: which known model their language part has the blocks of.

Data, in one file of names. A name means one of them where its words stand in it, in their order,
and what else it says is no size and no version.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import msgspec

from brimful.models.name_parts import (
    DROPPED,
    LONGEST,
    REVISION,
    points_for_dashes,
    spaced,
    split_publisher,
)

_FILE = "data/language_parts.json"
_TELLS = re.compile(r"\d{1,2}(?:\.\d+)?|\d+(?:\.\d+)?[mbt]|\d+x\d+(?:\.\d+)?b|[ae]\d+(?:\.\d+)?b")
"""What of a name says that it is another model: a version, a size, how much of it is active."""


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

    Args:
        text: As it was typed: a name of any spelling, a hub id.
    """
    name = split_publisher(text)[1][:LONGEST]
    found = best_named(name, language_parts())
    return language_parts()[found] if found else None


def best_named(name: str, known: Iterable[str]) -> str:
    """Return the longest of some names whose words are those of another; empty: there is none.

    Args:
        name: As it was typed, without who publishes it.
        known: The names.
    """
    typed = (_tokens(name), _tokens(points_for_dashes(name)))
    alike = [each for each in known if any(_is_named(given, _known(each)) for given in typed)]
    return max(alike, key=lambda each: len(_known(each)), default="")


def _is_named(given: Sequence[str], known: Sequence[str]) -> bool:
    """Whether a name begins as another, has its words in their order, and says no other size."""
    if given[:1] != known[:1]:
        return False
    rest = list(known)
    for token in given:
        if rest and token in {rest[0], f"v{rest[0]}"}:
            rest.pop(0)
        elif _TELLS.fullmatch(token):
            return False
    return not rest


@cache
def _known(name: str) -> tuple[str, ...]:
    return tuple(
        token.removeprefix("v") if REVISION.fullmatch(token) else token for token in _tokens(name)
    )


def _tokens(name: str) -> tuple[str, ...]:
    return tuple(token for token in spaced(name).split() if token not in DROPPED)
