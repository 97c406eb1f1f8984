"""What a shell says of values: sums, tests, patterns, and what stands behind a name in braces.

Nothing is run. What is not known here is None, and so is what follows from it.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from pathlib import Path

_SUMS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: int(left / right),
    ast.Mod: lambda left, right: left - int(left / right) * right,
}
_ORDERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le,
    "-gt": operator.gt, "-ge": operator.ge,
}  # fmt: skip
_OF_ORDERS = {"==": "-eq", "!=": "-ne", "<": "-lt", "<=": "-le", ">": "-gt", ">=": "-ge"}
_COMPARED = re.compile(r"(.+?)(==|!=|<=|>=|<|>)(.+)", re.DOTALL)
_OF_FILES: Mapping[str, Callable[[Path], bool]] = {
    "-f": Path.is_file, "-d": Path.is_dir, "-e": Path.exists, "-s": Path.exists,
    "-r": Path.exists, "-w": Path.exists, "-x": Path.exists, "-L": Path.is_symlink,
}  # fmt: skip
_DIGITS = 12
"""No number of a script has more."""
_CUTS = re.compile(r"(##?|%%?)(.*)", re.DOTALL)
_SWAPS = re.compile(r"(//?)((?:\\.|[^/\\])*)(?:/(.*))?", re.DOTALL)
_PARTS = re.compile(r":\s*(-?\d+)(?::(\d+))?")


def computed(text: str, number: Callable[[str], int | None]) -> int | None:
    """Return what a sum of whole numbers is.

    ``number``: says what a name stands for.
    """
    names = re.sub(r"\$\{?(\w+)\}?", r"\1", text).strip()
    try:
        return _sum(ast.parse(names, mode="eval").body, number)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _sum(node: ast.expr, number: Callable[[str], int | None]) -> int | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value if abs(node.value) < 10**_DIGITS else None
    if isinstance(node, ast.Name):
        return number(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _sum(node.operand, number)
        return None if inner is None else -inner
    if not isinstance(node, ast.BinOp) or type(node.op) not in _SUMS:
        return None
    left, right = _sum(node.left, number), _sum(node.right, number)
    return None if left is None or right is None else _SUMS[type(node.op)](left, right)


def is_so(text: str, number: Callable[[str], int | None]) -> bool | None:
    """Return whether what stands in ``((...))`` holds."""
    found = _COMPARED.fullmatch(text)
    if found is None:
        value = computed(text, number)
        return None if value is None else value != 0
    left, right = computed(found[1], number), computed(found[3], number)
    if left is None or right is None:
        return None
    return _ORDERS[_OF_ORDERS[found[2]]](left, right)


def holds(words: Sequence[str | None]) -> bool | None:
    """Return whether a test holds: what stands between ``[`` and ``]``, or ``[[`` and ``]]``.

    ``words``: of it; None: a word that is not known.
    """
    for joint, decides in (("||", True), ("-o", True), ("&&", False), ("-a", False)):
        if joint in words:
            place = words.index(joint)
            halves = holds(words[:place]), holds(words[place + 1 :])
            if decides in halves:
                return decides
            return None if None in halves else not decides
    if words[:1] == ["!"]:
        inner = holds(words[1:])
        return None if inner is None else not inner
    if len(words) > 1 and words[0] == "(" and words[-1] == ")":
        return holds(words[1:-1])
    return _plain(words)


def _plain(words: Sequence[str | None]) -> bool | None:  # noqa: PLR0911 - one for each test
    """Return whether a test without joints holds."""
    if None in words or len(words) > 3:  # noqa: PLR2004 - two values and what compares them
        return None
    known = [str(word) for word in words]
    if len(known) < 2:  # noqa: PLR2004
        return bool(known and known[0])
    if len(known) == 2:  # noqa: PLR2004
        return _one(*known)
    left, by, right = known
    if by in {"=", "=="}:
        return matches(left, right)
    if by == "!=":
        return not matches(left, right)
    if by == "=~":
        try:
            return re.search(right, left) is not None
        except re.error:
            return None
    if by in _ORDERS and _is_whole(left) and _is_whole(right):
        return _ORDERS[by](int(left), int(right))
    return None


def _one(what: str, value: str) -> bool | None:
    if what == "-z":
        return not value
    if what == "-n":
        return bool(value)
    try:  # what is not here may be where the script runs
        return (what in _OF_FILES and _OF_FILES[what](Path(value))) or None
    except (OSError, ValueError):
        return None


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and len(text) < _DIGITS


def matches(text: str, pattern: str) -> bool:
    """Return whether a text is of a pattern with ``*``, ``?`` and ``[...]``."""
    return text == pattern or re.fullmatch(translate(pattern), text) is not None


def changed(value: str, how: str) -> str | None:
    """Return what ``${NAME...}`` makes of a value; None: it is not known how.

    ``how``: what stands behind the name: ``%.*``, ``##*/``, ``/a/b``, ``:0:3``, ``,,``.
    """
    if found := _CUTS.fullmatch(how):
        return _cut(value, found[1], found[2])
    if found := _SWAPS.fullmatch(how):
        pattern = translate(found[2].replace("\\/", "/")).removesuffix("\\z").removesuffix("\\Z")
        new = (found[3] or "").replace("\\", "\\\\")
        return re.sub(pattern, new, value, count=0 if found[1] == "//" else 1)
    if found := _PARTS.fullmatch(how):
        start = int(found[1])
        return value[start:][: int(found[2])] if found[2] else value[start:]
    spelled = {",,": str.lower, "^^": str.upper, "^": str.capitalize}
    return spelled[how](value) if how in spelled else None


def _cut(value: str, how: str, pattern: str) -> str:
    """Return a value without the shortest or the longest of a pattern at its beginning or end."""
    places = range(len(value) + 1)
    if how[0] == "#":
        ends = places if how == "#" else reversed(places)
        return next((value[at:] for at in ends if matches(value[:at], pattern)), value)
    starts = reversed(places) if how == "%" else places
    return next((value[:at] for at in starts if matches(value[at:], pattern)), value)
