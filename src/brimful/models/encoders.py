"""Models of speech and images that are no language models: how many parameters they have.

Nothing else of them is described here, so that what is known of a run are its states.
"""

import re
from functools import cache
from importlib.resources import files

import msgspec

from brimful.models.module import read_factory
from brimful.models.registry import registry
from brimful.models.spec import ModelSpec

_FILE = "data/encoders.json"
_COUNTED = re.compile(r"text model only, (.+?):")
"""In why a count differs: what of the blocks is counted as something else."""
_SOUNDS = "sounds"
_WIDTH = 4096
"""That no rank of an adapter is over; nothing is counted by it."""


class Encoder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model of speech or images.

    Attributes:
        parameters: How many it has.
        names: What it is called on the hub.
        of: What it reads.
    """

    parameters: int
    names: tuple[str, ...]
    of: str


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    models: dict[str, Encoder]


@cache
def encoders() -> dict[str, Encoder]:
    """Return all that are known, by their keys."""
    return msgspec.json.decode(files("brimful").joinpath(_FILE).read_bytes(), type=_File).models


def find_encoder(text: str) -> tuple[str, Encoder] | None:
    """Return the one that a name means, its key first; None: none.

    ``text``: a key, or its name on the hub, with the organisation or without.
    """
    given = text.strip().lower()
    for key, encoder in encoders().items():
        called = {key, *encoder.names, *(name.partition("/")[2] for name in encoder.names)}
        if given in map(str.lower, called):
            return key, encoder
    return None


def stand_in(name: str) -> ModelSpec:
    """Describe one as a module of which nothing is known but its name."""
    return msgspec.structs.replace(read_factory("brimful:encoder"), name=name, hidden_size=_WIDTH)


def num_beside(model: ModelSpec) -> tuple[int, bool]:
    """Count what a published checkpoint has beside the language part that is planned.

    Returns parameters of its encoders of images and sounds, 0 where it has none; and whether that
    is at most, as the published count has more than these.
    """
    difference, why = _difference(model.name)
    if "vision tower" not in why and "towers" not in why:
        return 0, False
    twice = model.vocab_size * model.hidden_size if "twice" in why else 0
    return max(0, -difference - twice), "module" in why


def beside_words(model: ModelSpec) -> tuple[str, str]:
    """Say what encodes what a known model reads beside texts, and what of its blocks is counted.

    Returns ``images`` or ``sounds``, and what is counted as something else; empty: nothing is.
    """
    why = why_other_count(model.name)
    found = _COUNTED.search(why)
    is_heard = _SOUNDS in why and "images" not in why
    return _SOUNDS if is_heard else "images", found[1] if found else ""


def why_other_count(name: str) -> str:
    """Say why the registry's model has another count than is published; empty: it has not."""
    return _difference(name)[1]


def _difference(name: str) -> tuple[int, str]:
    """Return the parameters that the registry's model has more than the published, and why."""
    difference = registry().get(name, {}).get("difference") or {}
    return int(difference.get("num_parameters", 0)), str(difference.get("why", ""))
