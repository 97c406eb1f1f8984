"""Where a script adds to what outlives a step: lines that may keep tensors, read from its source.

A tape knows where a tensor was made, which is in a library mostly, and not who keeps it. Read is
what a loop appends, or adds to a name, without ``.item()``, ``.detach()`` or the like. Knows no
tape.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MOST_BYTES = 10**6
"""Of a script that is read."""
_KEEPS = frozenset({"append", "extend", "appendleft", "add"})
_FREES = frozenset({"item", "cpu", "tolist", "numpy"})
"""Methods whose result keeps nothing of a device."""
_CUTS = frozenset({"detach"})
"""Methods whose result keeps no graph."""
_COUNTS = frozenset({"float", "int", "len", "str"})
"""Functions whose result is no tensor; methods of such names return one."""


class KeptLine(NamedTuple):
    """A line that keeps something.

    Attributes:
        number: Of the line.
        name: What it adds to.
    """

    number: int
    name: str


def kept_lines(script: Path, *, of_graphs: bool = True) -> tuple[KeptLine, ...]:
    """List the lines of a script's loops that keep something; none where it cannot be read.

    ``of_graphs``: whether what keeps a tensor without its graph is left out.
    """
    try:
        if script.stat().st_size > MOST_BYTES:
            return ()
        tree = ast.parse(script.read_text("utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return ()
    found = {
        line
        for loop in ast.walk(tree)
        if isinstance(loop, ast.For | ast.While)
        for node in ast.walk(loop)
        for line in _kept(node, _FREES | _CUTS if of_graphs else _FREES)
    }
    return tuple(sorted(found))


def _kept(node: ast.AST, frees: frozenset[str]) -> Iterator[KeptLine]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        call = node.value
        is_kept = bool(call.args) and not any(_is_freed(each, frees) for each in call.args)
        if is_kept and isinstance(call.func, ast.Attribute) and call.func.attr in _KEEPS:
            yield KeptLine(node.lineno, ast.unparse(call.func.value))
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        names = ast.walk(node.value)
        holds = any(isinstance(each, ast.Attribute | ast.Name) for each in names)
        if holds and not _is_freed(node.value, frees):
            yield KeptLine(node.lineno, ast.unparse(node.target))


def _is_freed(value: ast.AST, frees: frozenset[str]) -> bool:
    """Whether a value keeps nothing: it is a constant, or something was called that frees it."""
    calls = [each.func for each in ast.walk(value) if isinstance(each, ast.Call)]
    return isinstance(value, ast.Constant) or any(
        func.attr in frees if isinstance(func, ast.Attribute) else _name(func) in _COUNTS
        for func in calls
    )


def _name(func: ast.expr) -> str:
    return func.id if isinstance(func, ast.Name) else ""
