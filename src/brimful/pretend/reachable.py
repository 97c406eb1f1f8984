"""What functions of a script may change that is no name of theirs.

A function that is called between two passes of a model counts in a global, in its closure, in an
attribute of its class, and nobody who looks at the functions on the stack sees it. Followed are the
script's own functions, classes and files: what libraries keep for themselves is theirs.
"""

import functools
import inspect
import operator
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from numbers import Number
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from brimful.pretend.script_lines import is_library

Put = Callable[[Any], None]
"""Puts another value in the place of one."""
_MOST, _MOST_HELD = 10_000, 100
"""Values that are looked at, and elements of a list, a tuple or a dictionary."""
_PLAIN = (Number, str, bytes, type(None), torch.Tensor)


def reachable(values: Iterable[Any]) -> Iterator[tuple[Any, Put]]:
    """Yield what functions among some values can name, and those that they name in turn."""
    seen, waiting = set[int](), deque(values)
    while waiting and len(seen) < _MOST:
        value = waiting.popleft()
        if id(value) in seen or isinstance(value, _PLAIN):
            continue
        seen.add(id(value))
        for held, put in _named(value):
            if not isinstance(held, (FunctionType, type)):
                yield held, put
            waiting.append(held)
        waiting += _leads_to(value)


def is_own(cls: type) -> bool:
    """Whether a class is of a script, or of a file of its own."""
    return _is_own_file(sys.modules.get(cls.__module__))


def _is_own_file(module: Any) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and not is_library(file)


def _named(value: Any) -> Iterator[tuple[Any, Put]]:
    """Yield what a function, a class or a file holds by names, and what puts others there."""
    if isinstance(value, FunctionType):
        if is_library(value.__code__.co_filename):
            return
        for cell in value.__closure__ or ():
            if cell is not None and _is_filled(cell):
                yield cell.cell_contents, partial(setattr, cell, "cell_contents")
        names, of_file = _names_of(value.__code__), value.__globals__
        yield from ((of_file[k], _put(of_file, k)) for k in names if k in of_file)
    elif isinstance(value, ModuleType):
        held = vars(value) if _is_own_file(value) else {}
        yield from ((x, _put(held, k)) for k, x in list(held.items()) if not k.startswith("__"))
    elif isinstance(value, type) and is_own(value):
        for name, held in list(vars(value).items()):
            if not name.startswith("__") and not inspect.isroutine(held):
                yield held, partial(setattr, value, name)


def _leads_to(value: Any) -> Iterator[Any]:
    """Yield functions, classes and what else is looked into behind a value."""
    if isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, (list, tuple, dict)):
        held = value.values() if isinstance(value, dict) else value
        yield from held if len(value) <= _MOST_HELD else ()
    elif isinstance(value, type) and is_own(value):
        yield from map(inspect.unwrap, filter(callable, map(_plain, vars(value).values())))
    if is_own(type(value)):
        yield type(value)
        yield from getattr(value, "__dict__", {}).values()


def _plain(value: Any) -> Any:
    """Return the function of what a class has of one."""
    if isinstance(value, property):
        return value.fget
    return value.__func__ if isinstance(value, (staticmethod, classmethod)) else value


def _is_filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _put(held: dict[str, Any], name: str) -> Put:
    return partial(operator.setitem, held, name)


@functools.cache
def _names_of(code: CodeType) -> tuple[str, ...]:
    """Return the names of a function's code, and of functions that it makes."""
    inner = (_names_of(each) for each in code.co_consts if isinstance(each, CodeType))
    return tuple(dict.fromkeys([*code.co_names, *(name for each in inner for name in each)]))
