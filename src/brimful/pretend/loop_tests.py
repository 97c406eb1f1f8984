"""What a loop asks of that which grows, and until which round it is answered as it was.

A round that is one in a hundred, or comes to a length, may do what no other does: evaluate, cut a
text, end the loop. Where the body of a script's own loop asks that of numbers, lengths and shapes
(``step % 100 == 0``, ``text.shape[1] > limit``), it is asked here of any later round, by what is
told of three (``loop_state.py``). What only says something is asked nothing of.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from types import CodeType
from typing import Any

from brimful.pretend.telling import FLOAT, OBJECT, ROW, SAME, TABLE, TENSOR, Told

_PURE = (
    ast.Compare, ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Name, ast.Constant, ast.Attribute,
    ast.Subscript, ast.Tuple, ast.List, ast.Set, ast.Slice, ast.operator, ast.cmpop, ast.boolop,
    ast.unaryop, ast.expr_context,
)  # fmt: skip
_SIZES, _OF_SIZES = frozenset({"size", "dim", "numel"}), {"len": len, "min": min, "max": max}
"""Methods and functions that a condition may call, of what is only told."""
_SAY = frozenset({"print", "info", "debug", "warning", "log", "set_description", "set_postfix"})


@lru_cache
def asked_in(source: str, line: int) -> tuple[tuple[CodeType, frozenset[str]], ...]:
    """Return the conditions of a loop's body, each with the names that it is of.

    ``line``: on which what the loop goes through is called for.
    """
    nodes = ast.walk(ast.parse(source))
    loops = [x for x in nodes if isinstance(x, ast.For) and _spans(x.iter, line)]
    found = (each for loop in loops for body in loop.body for each in _conditions(body))
    return tuple(
        (
            compile(ast.Expression(each), "<condition>", "eval"),
            frozenset(x.id for x in ast.walk(each) if isinstance(x, ast.Name)) - _OF_SIZES.keys(),
        )
        for each in found
        if all(map(_is_pure, ast.walk(each)))
    )


def _spans(node: ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _conditions(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what is asked, whole and in parts, but for what leads to mere words."""
    if isinstance(node, ast.If) and not node.orelse and all(map(_only_says, node.body)):
        return
    if isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Assert)):
        yield node.test
    elif isinstance(node, ast.Compare):
        yield node
    for each in ast.iter_child_nodes(node):
        yield from _conditions(each)


def _only_says(node: ast.stmt) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return False
    named = call.func
    name = named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", "")
    return name in _SAY


def _is_pure(node: ast.AST) -> bool:
    """Whether it changes nothing and can be asked of what is only told."""
    if isinstance(node, ast.Call):
        named = node.func
        is_size = isinstance(named, ast.Attribute) and named.attr in _SIZES
        return is_size or (isinstance(named, ast.Name) and named.id in _OF_SIZES)
    return isinstance(node, _PURE)


def first_unlike(
    asked: Sequence[tuple[CodeType, frozenset[str]]],
    states: Mapping[str, Sequence[Told]],
    period: int,
    most: int,
) -> int:
    """Return the first round that is answered otherwise than the one a period before it.

    ``states``: of three rounds, by name; the last of them is the round 0. ``most``: rounds that are
    looked at, returned where all are answered alike.
    """
    found = most
    for code, names in asked:
        if names <= states.keys():
            found = _first_unlike(code, {name: states[name] for name in names}, period, found)
    return found


def _first_unlike(
    code: CodeType, states: Mapping[str, Sequence[Told]], period: int, most: int
) -> int:
    answers = list[bool]()
    for num in range(-period - 1, most):
        held = {name: later(told, num) for name, told in states.items()}
        try:
            answer = bool(eval(code, {"__builtins__": _OF_SIZES}, held))  # noqa: S307
        except Exception:  # noqa: BLE001 - of what the script asks; nobody knows the answer
            return most
        if num >= -1 and answer != answers[num + 1]:
            return num
        answers.append(answer)
    return most


def later(told: Sequence[Told], num: int) -> Any:
    """Return what stands for a value so many rounds after the last of three that it is told of."""
    first, second, third = told
    if all(type(each) is int for each in told):
        return _on(told, num)
    if int in map(type, told) or not first[0] == second[0] == third[0]:
        return None
    if third[0] == FLOAT:
        return None if None in (first[1], second[1], third[1]) else _on([x[1] for x in told], num)
    if third[0] == SAME:
        return third[1] if first == second == third else None
    return _Later(told, num)


def _on(told: Sequence[Any], num: int) -> Any:
    """Return a number so many rounds on."""
    _, second, third = told
    return third + num * (third - second)


class _Later:
    """What stands for a tensor, a list or an object in a later round."""

    def __init__(self, told: Sequence[Told], num: int) -> None:
        self._told, self._num = told, num

    @property
    def _kind(self) -> int:
        kind: int = self._told[-1][0]
        return kind

    @property
    def shape(self) -> tuple[int, ...]:
        if self._kind != TENSOR:
            return self.__getattr__("shape")  # type: ignore[no-any-return]
        rank = self._told[-1][1][-1]
        sizes = zip(*(each[2][:rank] for each in self._told), strict=True)
        return tuple(_on(each, self._num) for each in sizes)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return prod(self.shape)

    def __len__(self) -> int:
        if self._kind == TENSOR:
            return self.shape[0]
        if self._kind in {ROW, TABLE}:
            length: int = _on([len(each[2]) for each in self._told], self._num)
            return length
        raise TypeError

    def __getitem__(self, place: Any) -> Any:
        if self._kind == ROW:
            return later([each[2][place] for each in self._told], self._num)
        if self._kind == TABLE:
            return later([each[3][each[2].index(place)] for each in self._told], self._num)
        raise TypeError

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self._kind != OBJECT:
            raise AttributeError(name)
        return later([each[-1][each[3].index(name)] for each in self._told], self._num)
