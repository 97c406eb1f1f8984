"""Paths of modules, and the short names by which users mean them."""

from collections.abc import Iterable


def ends_in(path: str, ends: Iterable[str]) -> bool:
    """Whether a path ends in one of some names, as PEFT matches them.

    ``path``: ``model.layers.0.mlp.up_proj``. ``ends``: ``up_proj``, ``mlp.up_proj`` or all of it;
    never a part of a part.
    """
    return any(path == end or path.endswith(f".{end}") for end in ends)


def lies_in(path: str, ends: Iterable[str]) -> bool:
    """Whether a module is one of some names, or lies in one that is.

    ``path``: ``model.layers.0.mlp.up_proj``. ``ends``: as of ``ends_in``.
    """
    parts, names = path.split("."), tuple(ends)
    return any(ends_in(".".join(parts[:num]), names) for num in range(1, len(parts) + 1))


def names_block(path: str) -> bool:
    """Whether a path, or the end of one, is of one block only: it has a number in it.

    ``path``: ``model.layers.0.mlp.up_proj``.
    """
    return any(part.isdecimal() for part in path.split("."))
