"""Models that make images or videos out of noise: how many parameters they have, and no more.

They are no language models and are not planned by their names; what can be said of one is what it
is, what its weights take and who runs its script.
"""

import re
from functools import cache
from importlib.resources import files

import msgspec

from brimful.models.language_parts import best_named, is_of_other, is_told, known_tokens
from brimful.models.name_parts import LONGEST, split_publisher
from brimful.units import format_bytes, format_count

_FILE = "data/diffusion.json"
_BF16_BYTES = 2
_FEW = 2
"""Words of a name that say which model it is, beside which any other may stand."""
_BESIDE = frozenset(
    {
        "base", "community", "dev", "diffusers", "distilled", "edit", "emaonly", "flash", "hd",
        "i2v", "inpaint", "inpainting", "lightning", "ms", "multiling", "original", "preview",
        "pruned", "repackaged", "schnell", "sprint", "t2i", "t2v", "turbo", "unlocked",
    }
)  # fmt: skip
"""Words that stand beside a name of one word, whose blocks are the same then."""
_SHAPE = re.compile(r"\d+k?(?:p|px)|\d{3,8}|\d+(?:\.\d+){2,}|v\d\d")
"""Beside such a name: the size of what it makes, a date, which of its uploads it is."""


class TextEncoder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What reads the text that an image is made of.

    Attributes:
        called: Its name.
        parameters: How many it has.
    """

    called: str
    parameters: int


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model as the file has it: ``copies`` of one network, and keys of the text encoders."""

    names: tuple[str, ...]
    kind: str
    makes: str
    parameters: int
    beside: tuple[str, ...]
    copies: int = 1


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    encoders: dict[str, TextEncoder]
    models: dict[str, _Entry]


class Diffusion(msgspec.Struct, frozen=True, kw_only=True):
    """A model that makes images or videos.

    Attributes:
        name: What it is called.
        kind: ``transformer`` or ``UNet``.
        makes: ``images`` or ``videos``.
        parameters: How many one of its networks has.
        copies: How many networks of that size it has.
        encoders: What reads its texts; empty: not known here.
    """

    name: str
    kind: str
    makes: str
    parameters: int
    copies: int
    encoders: tuple[TextEncoder, ...]

    @property
    def weight_bytes(self) -> int:
        """What its networks take in bf16."""
        return self.copies * self.parameters * _BF16_BYTES

    @property
    def all_bytes(self) -> int:
        """What they take with the text encoders."""
        return self.weight_bytes + sum(each.parameters for each in self.encoders) * _BF16_BYTES


@cache
def diffusion_models() -> dict[str, Diffusion]:
    """Return all that are known, by each of their names."""
    file = msgspec.json.decode(files("brimful").joinpath(_FILE).read_bytes(), type=_File)
    return {
        called: Diffusion(
            name=name,
            kind=entry.kind,
            makes=entry.makes,
            parameters=entry.parameters,
            copies=entry.copies,
            encoders=tuple(file.encoders[key] for key in entry.beside),
        )
        for name, entry in file.models.items()
        for called in entry.names
    }


def find_diffusion(text: str) -> Diffusion | None:
    """Return the one that a name means; None: none.

    ``text``: as it was typed: a name of any spelling, a hub id.
    """
    name = split_publisher(text)[1][:LONGEST]
    found = best_named(name, diffusion_models(), is_spare=_is_spare, dropped=frozenset())
    return diffusion_models()[found] if found else None


def _is_spare(token: str, known: str) -> bool:
    """Whether a word may stand beside a known name, which says little where it is one word."""
    words = [each for each in known_tokens(known) if not is_told(each)]
    if len(words) < _FEW:
        return token in _BESIDE or _SHAPE.fullmatch(token) is not None
    return not is_of_other(token)


def encoders_of(model: Diffusion) -> str:
    """Name what reads its texts."""
    called = [each.called for each in model.encoders]
    if len(called) == 1:
        return f"text encoder, {called[0]}"
    return f"text encoders, {', '.join(called[:-1])} and {called[-1]}"


def what_it_is(model: Diffusion) -> str:
    """Say in words what one is, and what its weights take."""
    count = format_count(model.parameters)
    kind = f"a diffusion {model.kind} of {count} parameters that makes"
    if model.copies > 1:
        kind = f"{model.copies} diffusion {model.kind}s of {count} parameters each that make"
    held = format_bytes(model.all_bytes)
    texts = f" ({held} with its {encoders_of(model)})" if model.encoders else ""
    return (
        f"{model.name} is {kind} {model.makes}, and brimful plans language models by name; its "
        f"weights alone take {format_bytes(model.weight_bytes)} in bf16{texts}"
    )


def refusal(model: Diffusion, *, fits: str = "", gpu: str = "CARD") -> str:
    """Say in one sentence what one is, whether it fits, and what to type instead.

    ``fits``: whether its weights fit the GPU that was asked about, in words; empty: none was.
    """
    held = f", {fits}" if fits else ""
    script = f"brimful pretend --gpu {gpu} -- train_script.py"
    return f"{what_it_is(model)}{held}; {script} runs the script that trains it"
