"""What is told of a value that a loop holds, for three rounds in a row to be laid side by side."""

import io
import random
from collections import deque
from functools import partial
from numbers import Number
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from brimful.pretend.known_values import KnownValues
from brimful.pretend.reachable import is_own
from brimful.pretend.rounds import attributes_of

NUM_DEEP = 3
"""Objects in objects that are looked into: an encoder's and a decoder's cache, one of them, a layer
of that."""
_MOST_LOOKED_AT = 2000
"""Elements of what is looked into; a tokenizer has more words, and no loop changes them."""
_MOST_NESTED = 8
_PLAIN = (Number, np.generic, str, bytes, type(None), torch.dtype, torch.device, slice)
CODE = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type)
Told = Any
"""What is told of a value: numbers as they are, the others as tuples that begin with their kind."""
TENSOR, ROW, TABLE, OBJECT, SAME, FLOAT = range(6)
"""Kinds of what is told."""


class UnlikeStatesError(Exception):
    """A loop's states are not those of an even growth."""


def storage_of(tensor: torch.Tensor) -> Any:
    """Return the memory that a tensor lies in."""
    return tensor.untyped_storage()


class Teller:
    """Tells values, as ``Change.add`` reads them."""

    def __init__(self, known: KnownValues, *, reads_a_clock: bool) -> None:
        """Know whether numbers that are not whole may be times, which nothing is made of."""
        self._known, self._reads_a_clock = known, reads_a_clock

    def tell(
        self, value: Any, num_deep: int = NUM_DEEP, nested: int = 0, *, is_theirs: bool
    ) -> Told:
        """Tell a value.

        ``is_theirs``: whether the script's own holds it, and no object of a library's. Raises
        UnlikeStatesError: nobody sees how far it is.
        """
        if type(value) is int:
            return value
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, float):
            is_exact = is_theirs and not self._reads_a_clock
            return (FLOAT, value if is_exact else None)
        if isinstance(value, (*_PLAIN, *CODE, np.ndarray)) or nested == _MOST_NESTED:
            return (SAME, _same(value))
        if is_theirs and hasattr(type(value), "__next__") and not isinstance(value, io.IOBase):
            raise UnlikeStatesError
        return self._held(value, num_deep, nested, is_theirs=is_theirs)

    def _held(self, value: Any, num_deep: int, nested: int, *, is_theirs: bool) -> Told:
        tell = partial(self.tell, num_deep=num_deep, nested=nested + 1, is_theirs=is_theirs)
        if isinstance(value, (list, tuple)) and len(value) <= _MOST_LOOKED_AT:
            return (ROW, type(value), list(map(tell, value)))
        if isinstance(value, dict) and len(value) <= _MOST_LOOKED_AT:
            return (TABLE, type(value), tuple(value), list(map(tell, value.values())))
        size = len(value) if isinstance(value, (list, tuple, dict, set, frozenset, deque)) else 0
        held = attributes_of(value) if num_deep else {}
        mine = is_theirs and is_own(type(value))
        inner = [self.tell(x, num_deep - 1, nested + 1, is_theirs=mine) for x in held.values()]
        return (OBJECT, type(value), (size, _drawn(value)), tuple(held), inner)

    def _tensor(self, value: torch.Tensor) -> Told:
        facts = (type(value), value.dtype, value.device, value.requires_grad, value.dim())
        if not isinstance(value, FakeTensor) or isinstance(value, nn.Parameter):
            return (TENSOR, facts, tuple(value.shape), {})
        places = (*value.shape, *value.stride(), value.storage_offset(), storage_of(value).nbytes())
        return (TENSOR, facts, places, self._known.copies_of(value))


def _same(value: Any) -> Any:
    """Return what is the same in each round of what is looked no further into."""
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype, hash(value.tobytes())
    return value if isinstance(value, _PLAIN) else id(value)


def _drawn(value: Any) -> Any:
    """Return how far a generator of random numbers is."""
    if isinstance(value, random.Random):
        return value.getstate()
    return repr(value.bit_generator.state) if isinstance(value, np.random.Generator) else None
