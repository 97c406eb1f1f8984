"""What a command line of Megatron-LM says layer by layer: mixtures, windows, rotations.

Source: ``moe_freq_type`` in ``megatron/training/arguments.py``; ``is_layer_window_attention`` in
``megatron/core/transformer/utils.py``; ``no_rope_freq`` in ``transformer_config.py``.
"""

import re
from collections.abc import Sequence
from itertools import groupby

from brimful.errors import InputError
from brimful.programs.base import Flags

_LIST = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,4}))?")
_LISTED = re.compile(r"[01](?: [01])+")
_PAIR = re.compile(r"\(?(-?\d{1,9}),(-?\d{1,9})\)?")
_DIGITS = 9


def mixtures(flags: Flags, num_layers: int, *, is_any: bool) -> tuple[bool, ...]:
    """Return which layers are mixtures: every n-th, or a list such as ``([0]*3+[1]*11)``."""
    if not is_any:
        return (False,) * num_layers
    every, listed = _by_layer(flags, "--moe-layer-freq", num_layers)
    return listed or tuple(layer % every == 0 for layer in range(num_layers))


def windows(flags: Flags, num_layers: int) -> tuple[int, ...]:
    """Return at how many tokens a token looks, layer by layer; 0: at all of them."""
    text = flags.text("--window-size")
    if not text:
        return (0,) * num_layers
    pair = _PAIR.fullmatch(text.replace(" ", ""))
    if pair is None:
        raise InputError(f"--window-size {text} is no pair of numbers, such as 127,0")
    window = max(0, int(pair[1]) + 1)
    every, listed = _by_layer(flags, "--window-attn-skip-freq", num_layers)
    if not flags.has("--window-attn-skip-freq"):
        return (window,) * num_layers
    has = listed or tuple((layer + 1) % every != 0 for layer in range(num_layers))
    return tuple(window if each else 0 for each in has)


def unrotated(flags: Flags, num_layers: int) -> tuple[bool, ...]:
    """Return which layers rotate neither queries nor keys: every n-th, or those of a list."""
    if not flags.has("--no-rope-freq"):
        return (False,) * num_layers
    n, listed = _by_layer(flags, "--no-rope-freq", num_layers)
    if n and num_layers % n:
        raise InputError(f"--no-rope-freq {n} does not divide --num-layers {num_layers}; list them")
    return listed or tuple((layer + 1) % n == 0 for layer in range(num_layers))


def listed(each: Sequence[bool]) -> str:
    """Write down which layers are meant, as ``([0]*3+[1]*58)``."""
    runs = (f"[{int(has)}]*{len([*run])}" for has, run in groupby(each))
    return f"({'+'.join(runs)})"


def every_nth(each: Sequence[bool]) -> int:
    """Return n where every n-th of some layers is meant, and no other; 0: it is not so."""
    n = [*each, True].index(True) + 1
    is_even = len(each) % n == 0
    return n if is_even and all(has == ((i + 1) % n == 0) for i, has in enumerate(each)) else 0


def _by_layer(flags: Flags, flag: str, num_layers: int) -> tuple[int, tuple[bool, ...]]:
    """Read what is said of layers: of every n-th, or of each in a list."""
    text = flags.text(flag) or "1"
    plain = text.strip("()")
    if plain.isdecimal() and len(plain) <= _DIGITS and int(plain):
        return int(plain), ()
    if _LISTED.fullmatch(plain):  # as a YAML writes it
        plain = f"[{','.join(plain.split())}]"
    found: list[bool] = []
    for part in plain.replace(" ", "").split("+"):
        matched = _LIST.fullmatch(part)
        if matched is None:
            raise InputError(f"{flag} {text} is no number and no list of 0 and 1; give one")
        found += [each == "1" for each in matched[1].split(",")] * int(matched[2] or 1)
    if len(found) != num_layers:
        raise InputError(
            f"{flag} {text} is of {len(found)} layers and --num-layers is {num_layers}; "
            f"give one for each"
        )
    return 0, tuple(found)
