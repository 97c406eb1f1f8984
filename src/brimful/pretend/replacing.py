"""Replacing names in other people's modules, and putting everything back."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any


@contextlib.contextmanager
def replaced(what: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Replace attributes inside the block.

    ``what``: Triples of an object, the attribute's name and its value; a name that the object does
    not have is made and removed again.
    """
    missing = object()
    before: list[tuple[Any, str, Any]] = []
    try:
        for target, name, value in what:
            before.append((target, name, vars(target).get(name, missing)))
            setattr(target, name, value)
        yield
    finally:
        for target, name, value in reversed(before):
            if value is missing:
                delattr(target, name)
            else:
                setattr(target, name, value)
