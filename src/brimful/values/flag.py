"""How a field is given on the command line, said where the field is.

``cli.flags`` makes the flag of this and of the field's type; what holds where nobody gives one
stands in ``cli.defaults``.
"""

from typing import Any, NamedTuple, get_args, get_type_hints


class Flag(NamedTuple):
    """The metadata of a field that has a flag.

    Attributes:
        words: The flag's help; ``{default}``: what holds without it, ``{either}`` and ``{each}``:
            the choices, with "or" and with commas.
        name: What it is called, where that is not the field's own name.
        metavar: What stands for its value, where the field's type does not say.
        least: Of a count, the smallest.
        is_length: Whether it is a count of tokens of a text, as people write them.
        is_searched: Whether ``plan`` searches for it where nobody gives one.
        is_listed: Whether ``plan`` takes several values, by comma.
        also: A short name.
        left_out: Choices that nobody can make.
    """

    words: str
    name: str = ""
    metavar: str = ""
    least: int = 1
    is_length: bool = False
    is_searched: bool = False
    is_listed: bool = False
    also: str = ""
    left_out: tuple[str, ...] = ()


class FlaggedField(NamedTuple):
    """A flag, and the type of the field that it gives."""

    flag: Flag
    kind: Any


def flags_of(struct: type) -> dict[str, FlaggedField]:
    """Return the flags of a struct by what argparse calls them, in the order of its fields."""
    found = {}
    for field, annotated in get_type_hints(struct, include_extras=True).items():
        for each in getattr(annotated, "__metadata__", ()):
            if isinstance(each, Flag):
                name = (each.name or field).replace("-", "_")
                found[name] = FlaggedField(each, get_args(annotated)[0])
    return found
