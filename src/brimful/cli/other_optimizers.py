"""The refusal of an optimizer of others, and between which of ours what it takes lies."""

import argparse

from brimful.cli import defaults
from brimful.cost.recipes import FP32_BYTES, RECIPES
from brimful.errors import LESS, MORE, UnsupportedError
from brimful.techniques.optimizers import (
    OPTIMIZERS,
    OTHERS,
    Bounds,
    Ours,
    Settings,
    bounds,
)

OTHER_OPTIMIZERS = {word: other for other in OTHERS for word in other.words}
"""By their names as they are typed."""
MOMENTUM = 0.9
"""Of a rule that has one, if nothing says otherwise."""
_EARLY = {"optimizer_in_backward": True, "clip": 0.0}


def refusal(flag: str, word: str, args: argparse.Namespace) -> UnsupportedError:
    """Return it, with the question to answer instead.

    ``flag``: under which ``word`` was typed.
    """
    other = OTHER_OPTIMIZERS[word]
    found = bounds(other, (*OPTIMIZERS.values(),), _settings(args))
    near, takes = found.upper, "" if found.lower == found.upper else MORE
    lower = {} if near is None or found.lower is None or not takes else _flags(found.lower, args)
    if near is None:
        near, takes = found.lower, LESS
    nearest = {} if near is None else _flags(near, args)
    return UnsupportedError(
        f"--{flag} {word} ({other.keeps}) is not run by this version; {_words(found)}",
        nearest={flag: None, **nearest} if nearest else {},
        takes=takes,
        lower=lower,
    )


def _settings(args: argparse.Namespace) -> list[Settings]:
    """List what an update may be asked with, by the bytes of what trains."""
    given = getattr(args, "precision", None)
    recipes = [given] if isinstance(given, str) else given or [defaults.PRECISION]
    widths = {RECIPES[name].updated for name in recipes if name in RECIPES}
    if (getattr(args, "method", None) or "full") != "full":
        widths.add(FP32_BYTES)  # as adapters may be
    return [
        Settings(num_bytes=each, kernels="cuda", momentum=MOMENTUM, decay=defaults.WEIGHT_DECAY)
        for each in sorted(widths)
    ]


def _flags(ours: Ours, args: argparse.Namespace) -> dict[str, object]:
    """Return flags that ask for one of ours; its momentum stays unless that has to be another."""
    flags: dict[str, object] = {"optimizer": ours.name}
    if ours.beta1 is not None:
        flags["beta1"] = ours.beta1
    elif OPTIMIZERS[ours.name].is_momentum and getattr(args, "beta1", None) == 0:
        flags["beta1"] = None
    return flags | (_EARLY if ours.early else {})


def _words(found: Bounds) -> str:
    if found.lower is None and found.upper is None:
        return "nothing is known here of what it takes"
    if found.lower == found.upper:
        return f"{_name(found.upper)} takes as many bytes"
    if found.upper is None:
        same = ", which keeps as many bytes" if found.keeps_same else ""
        return f"it takes no less than {_name(found.lower)}{same}, and none here takes as much"
    if found.lower is None:
        return f"it takes no more than {_name(found.upper)}"
    same = ", which keeps as many bytes," if found.keeps_same else ""
    return f"what it takes lies between {_name(found.lower)}{same} and {_name(found.upper)}"


def _name(ours: Ours | None) -> str:
    """Name one of ours, and how it is asked for."""
    if ours is None:
        return ""
    without = "" if ours.beta1 is None else " without momentum"
    return f"{ours.name}{without}{' in the backward pass' * ours.early}"
