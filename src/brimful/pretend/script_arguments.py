"""The numbers of a script: the arguments that its text declares, those that it writes out.

argparse's ``add_argument`` and click's ``option`` are read; what another program parses is found by
the name that was asked for alone.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

_DECLARING = frozenset({"add_argument", "option"})
"""Methods of argparse and of click that declare an argument."""
_SWITCHES = {"store_true": False, "store_false": True}
"""Kinds of arguments that are not given a value, and what they are where nobody gives them."""
_SHORT = 2
"""Letters of a short flag, its dash counted."""


class Declared(NamedTuple):
    """An argument of a script.

    Attributes:
        names: As it may be typed: ``--batch-size``, ``-b``.
        default: What it is where nobody gives it; None: that is not written out.
        is_switch: Whether it stands without a value.
    """

    names: tuple[str, ...]
    default: Any
    is_switch: bool

    def is_called(self, name: str) -> bool:
        """Whether it is meant by a name, with dashes in front or without."""
        return _bare(name) in map(_bare, self.names)


class Given(NamedTuple):
    """Where a command line gives an argument.

    Attributes:
        flag: As it is typed.
        value: The text behind it; empty where none is.
        place: Of the word that holds the value.
        prefix: What stands before the value in that word: ``--batch=``, ``-b``.
    """

    flag: str
    value: str
    place: int
    prefix: str


def declared_by(script: str) -> list[Declared]:
    """Read the arguments that a script's text declares; none of a module or a notebook."""
    try:
        return list(declared_in(ast.parse(Path(script).read_text("utf-8"))))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []  # what fails when it is run


def declared_in(tree: ast.AST) -> Iterator[Declared]:
    """Yield the arguments that a text declares."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or _called(node) not in _DECLARING:
            continue
        words = [each.value for each in node.args if isinstance(each, ast.Constant)]
        names = tuple(each for each in words if isinstance(each, str) and each.startswith("-"))
        told = {each.arg: value for each in node.keywords for value in _written(each.value)}
        switch = _SWITCHES.get(str(told.get("action")))
        if names:
            yield Declared(names, told.get("default", switch), switch is not None)


def constants_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the names that a text writes whole numbers behind: variables, keywords, keys."""
    for name, value in chain.from_iterable(map(_named, ast.walk(tree))):
        if isinstance(value, ast.Constant) and type(value.value) is int:
            yield name, value.value


def _named(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield what a part of a text gives names to."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from _assigned(target, node.value)
    elif isinstance(node, ast.keyword) and node.arg is not None:
        yield node.arg, node.value
    elif isinstance(node, ast.arguments):
        last = [*node.posonlyargs, *node.args][-len(node.defaults) or None :]
        for each, default in (
            *zip(last, node.defaults, strict=False),
            *zip(node.kwonlyargs, node.kw_defaults, strict=True),
        ):
            yield each.arg, default
    elif isinstance(node, ast.Dict):
        for key, of_key in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, of_key


def _assigned(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, ast.expr | None]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for each, part in zip(target.elts, value.elts, strict=False):
            yield from _assigned(each, part)
    elif isinstance(target, ast.Name | ast.Attribute):
        yield target.id if isinstance(target, ast.Name) else target.attr, value


def _written(node: ast.expr) -> list[Any]:
    """Return the value that is written out, alone; nothing where it is computed."""
    try:
        return [ast.literal_eval(node)]
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return []


def find_given(
    words: Sequence[str], names: Iterable[str], *, others: Iterable[str] = ()
) -> Given | None:
    """Find where a command line gives an argument: the last time, which is the one that counts.

    ``others``: the names of all arguments, with which a beginning of one may be meant.
    """
    ours = set(map(_dashed, names))
    long = {name for name in map(_dashed, others) if name.startswith("--")} | ours
    for place in range(len(words) - 1, -1, -1):
        flag, joins, value = words[place].partition("=")
        typed = _dashed(flag)
        meant = {name for name in long if name.startswith(typed)} if typed[:2] == "--" else set()
        if typed in ours or (len(typed) > _SHORT and meant and meant <= ours):
            behind = "" if place + 1 == len(words) else words[place + 1]
            if joins:
                return Given(flag, value, place, f"{flag}=")
            return Given(flag, behind, place + 1, "")
        short, tail = words[place][:_SHORT], words[place][_SHORT:]
        if short in ours and short != "--" and tail.isdecimal():  # -b4
            return Given(short, tail, place, short)
    return None


def _bare(name: str) -> str:
    return _dashed(name).lstrip("-")


def _dashed(name: str) -> str:
    """Spell a name as it is typed here: who writes ``_`` may mean ``-``."""
    return name.replace("_", "-")


def _called(call: ast.Call) -> str:
    """Return the last part of what a call calls."""
    return str(getattr(call.func, "attr", None) or getattr(call.func, "id", ""))
