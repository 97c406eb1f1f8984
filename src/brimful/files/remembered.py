"""Remembering what was made of large values that are compared by what they are, not what they hold.

Profiles, their kinds and layouts are read once and kept: hashing all that they hold would take
longer than what is made of them.
"""

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, TypeVar

Made = TypeVar("Made")
MOST_KEPT = 2048
"""Of what one function made: a market of models of several kinds asks for tens of thousands."""


def once_for_each(make: Callable[..., Made], *, most: int = MOST_KEPT) -> Callable[..., Made]:
    """Make something of a value once: of this one, and of others by what they hold.

    The first argument is kept with what was made of it, so that its identity stays its own.

    ``make``: takes the value, and others that can be hashed.
    """
    known: dict[tuple[Any, ...], tuple[Any, Made]] = {}

    @wraps(make)
    def made(value: Any, *others: Any) -> Made:
        key = (id(value), *others)
        if key not in known:
            keep(known, key, (value, make(value, *others)), most=most)
        return known[key][1]

    return made


def keep(known: dict[Any, Made], key: Hashable, made: Made, *, most: int) -> None:
    """Keep something under a key; the oldest goes where there would be more than ``most``."""
    if len(known) >= most:
        del known[next(iter(known))]
    known[key] = made
