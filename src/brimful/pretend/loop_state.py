"""What a loop holds between two rounds, and what it will hold many rounds later.

Of three rounds in a row everything is told that the loop's functions can name: numbers, tensors,
what is in lists and what objects keep. Where each whole number, and each size of a tensor, is as
much larger in the third as it was in the second, any later round's are known, and are put where
the loop finds them: a tensor stays the object that it was, with other sizes.
"""

import ctypes
import gc
import inspect
import operator
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from numbers import Number
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from brimful.pretend.known_values import KNOWN, KnownValues
from brimful.pretend.rounds import attributes_of

NUM_DEEP = 3
"""Objects in objects that are looked into: an encoder's and a decoder's cache, one of them, a layer
of that."""
_MOST_LOOKED_AT = 2000
"""Elements of what is looked into; a tokenizer has more words, and no loop changes them."""
_MOST_NESTED = 8
_PLAIN = (Number, np.generic, str, bytes, type(None), torch.dtype, torch.device, slice)
_CODE = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type)
_LOCALS_ARE_A_COPY = sys.version_info < (3, 13)

NewTensor = Callable[[torch.Tensor, int], torch.Tensor]
"""Makes what stands so many stretches later where a tensor stands that each round makes anew."""
Told = Any
"""What is told of a value: numbers as they are, the others as tuples that begin with their kind."""
_Sized = tuple[torch.Tensor, tuple[int, ...], dict[str, Any]]
"""A tensor, its shape, strides, offset and the bytes that it lies in, and what is known of it."""
_TENSOR, _ROW, _TABLE, _OBJECT, _SAME = range(5)


class UnlikeStatesError(Exception):
    """A loop's states are not those of an even growth."""


class State:
    """What functions hold, and what the module that the innermost of them calls is given.

    ``frames``: of these functions. ``module``: that is called. ``given``: its arguments, by name.
    """

    def __init__(
        self, frames: Sequence[Any], module: nn.Module, given: dict[Any, Any], known: KnownValues
    ) -> None:
        """Look at nothing yet."""
        self._frames, self._module, self._given = frames, module, given
        self._known = known

    def told(self) -> tuple[Told, ...]:
        """Tell what is held now. Raises UnlikeStatesError: nobody sees all of it."""
        return tuple(_told(value, self._known) for value, _ in self._roots())

    def later(self, states: Sequence[tuple[Told, ...]], num: int, period: int) -> "Change":
        """Return what lets all of it be as it will be so many rounds later.

        ``states``: of the last three rounds, the last of them now. ``period``: rounds of a stretch.
        Raises UnlikeStatesError: nobody knows that.
        """
        change = Change(num, period)
        roots = list(self._roots())
        if not all(len(state) == len(roots) for state in states):
            raise UnlikeStatesError
        for (value, put), *told in zip(roots, *states, strict=True):
            change.add(value, told, put)
        change.check()
        return change

    def _roots(self) -> Iterator[tuple[Any, Callable[[Any], None] | None]]:
        """Yield what is held, and what puts another value there."""
        for frame in self._frames:
            names = _names_of(frame)
            for name, value in names.items():
                if hasattr(value, "__next__"):
                    raise UnlikeStatesError  # how far it is, nobody sees
                yield value, partial(_assign, frame, name)
        yield from ((x, partial(operator.setitem, self._given, k)) for k, x in self._given.items())
        for module in self._module.modules():
            own = {k: x for k, x in vars(module).items() if k not in _OF_MODULES}
            yield (tuple(own), tuple(own.values()), module._buffers), None  # noqa: SLF001


_OF_MODULES = frozenset(vars(nn.Module()))
"""What PyTorch keeps of every module."""


def _names_of(frame: Any) -> dict[str, Any]:
    """Return what a function holds by its names; of a script the names that its code has.

    Source: ``PyFrame_FastToLocalsWithError``: before Python 3.13 a frame keeps what it is asked
    for, which would let tensors live longer than they do.
    """
    code, of_file = frame.f_code, frame.f_globals
    named = {k: of_file[k] for k in code.co_names if k in of_file}
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return {k: x for k, x in named.items() if not isinstance(x, _CODE)}
    values = frame.f_locals
    found = {f".{k}": x for k, x in named.items() if not isinstance(x, _CODE)} | dict(values)
    if _LOCALS_ARE_A_COPY:
        values.clear()
    return found


def _assign(frame: Any, name: str, value: Any) -> None:
    """Give a name of a function another value."""
    if name.startswith("."):
        frame.f_globals[name[1:]] = value
        return
    names = frame.f_locals
    names[name] = value
    if _LOCALS_ARE_A_COPY and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        names.clear()


def _told(value: Any, known: KnownValues, num_deep: int = NUM_DEEP, nested: int = 0) -> Told:
    """Tell a value, as ``Change.add`` reads it."""
    if type(value) is int:
        return value
    if isinstance(value, torch.Tensor):
        return _told_tensor(value, known)
    if isinstance(value, (*_PLAIN, *_CODE)) or nested == _MOST_NESTED:
        return (_SAME, _same(value))
    told = partial(_told, known=known, num_deep=num_deep, nested=nested + 1)
    if type(value) in {list, tuple} and len(value) <= _MOST_LOOKED_AT:
        return (_ROW, type(value), list(map(told, value)))
    if isinstance(value, dict) and len(value) <= _MOST_LOOKED_AT:
        return (_TABLE, type(value), tuple(value), list(map(told, value.values())))
    size = len(value) if isinstance(value, (list, tuple, dict, set, frozenset, deque)) else 0
    held = attributes_of(value) if num_deep else {}
    inner = [_told(x, known, num_deep - 1, nested + 1) for x in held.values()]
    return (_OBJECT, type(value), size, tuple(held), inner)


def _same(value: Any) -> Any:
    """Return what is the same in each round of what is looked no further into."""
    if isinstance(value, float):  # of which no size is made
        return None
    return value if isinstance(value, _PLAIN) else id(value)


def _told_tensor(value: torch.Tensor, known: KnownValues) -> Told:
    facts = (type(value), value.dtype, value.device, value.requires_grad, value.dim())
    if not isinstance(value, FakeTensor) or isinstance(value, nn.Parameter):
        return (_TENSOR, facts, tuple(value.shape), {})
    places = (*value.shape, *value.stride(), value.storage_offset(), _storage(value).nbytes())
    return (_TENSOR, facts, places, known.copies_of(value))


def _storage(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage()


class Change:
    """What is to be done for all to be as it will be.

    Attributes:
        kept: Tensors of the last stretch of rounds that stay, each in a list that grows.
        grown: Those that are to be larger, by the number of the storage that they lie in, each with
            its sizes and what is known of it.
    """

    def __init__(self, num: int, period: int) -> None:
        """Have nothing to do yet; the arguments are those of ``State.later``."""
        self._num, self._period = num, period
        self._puts: list[Callable[[], None]] = []
        self._fills: list[Callable[[NewTensor], None]] = []
        self._seen: set[int] = set()
        self._stays: dict[int, tuple[torch.Tensor, dict[str, torch.Tensor]]] = {}
        self._shifted: list[_Sized] = []
        self.kept: list[torch.Tensor] = []
        self.grown: dict[int, list[_Sized]] = {}

    def add(self, value: Any, told: Sequence[Told], put: Callable[[Any], None] | None) -> None:
        """Look at a value, told of three rounds in a row.

        ``put``: puts another there; None: nobody can. Raises UnlikeStatesError.
        """
        first, second, third = told
        if all(type(each) is int for each in told):
            if first == second == third:
                return
            if second - first != third - second or put is None:
                raise UnlikeStatesError
            self._puts.append(partial(put, third + self._num * (third - second)))
            return
        if type(third) is int or not first[0] == second[0] == third[0]:
            raise UnlikeStatesError
        if third[0] == _TENSOR:
            self._add_tensor(value, told)
        elif third[0] == _ROW:
            self._add_row(value, told, put)
        elif third[0] in {_TABLE, _OBJECT}:
            if not first[1:-1] == second[1:-1] == third[1:-1]:
                raise UnlikeStatesError
            self._add_held(value, [each[-1] for each in told], third)
        elif not first == second == third:
            raise UnlikeStatesError

    def _add_held(self, value: Any, told: Sequence[Any], last: Told) -> None:
        """Look at what a dictionary or an object keeps."""
        if last[0] == _TABLE:
            held: dict[Any, Any] = value
            puts = [partial(operator.setitem, value, key) for key in held]
        else:
            held = attributes_of(value) if last[-1] else {}
            puts = [partial(setattr, value, key) for key in held]
        for each, put, *theirs in zip(held.values(), puts, *told, strict=True):
            self.add(each, theirs, put)

    def _add_row(self, value: Any, told: Sequence[Told], put: Callable[[Any], None] | None) -> None:
        """Look at a list or a tuple, which may grow by as many elements each time."""
        first, second, third = (each[2] for each in told)
        if not told[0][1] == told[1][1] == told[2][1]:
            raise UnlikeStatesError
        grown = len(third) - len(second)
        if grown < 0 or grown != len(second) - len(first):
            raise UnlikeStatesError
        is_list = isinstance(value, list)
        for place, theirs in enumerate(zip(first, second, third, strict=False)):
            put_it = partial(operator.setitem, value, place) if is_list else None
            self.add(value[place], theirs, put_it)
        if not grown:
            return
        if not is_list and put is None:
            raise UnlikeStatesError
        last = value[-self._period * grown :]
        if len(last) < self._period * grown or not all(
            map(_are_alike, second[len(first) :], third[len(second) :])
        ):
            raise UnlikeStatesError
        self.kept += _tensors_in(last)
        self._fills.append(partial(_fill, value, last, put, self._num // self._period))

    def _add_tensor(self, value: torch.Tensor, told: Sequence[Told]) -> None:
        first, second, third = told
        # What a view is of lives as long, and has no size of its own that anybody asks for.
        self._seen |= {id(value), id(value._base)}  # noqa: SLF001
        if not first[1] == second[1] == third[1]:
            raise UnlikeStatesError
        steps = [y - x for x, y in zip(second[2], third[2], strict=True)]
        if steps != [y - x for x, y in zip(first[2], second[2], strict=True)]:
            raise UnlikeStatesError
        if not isinstance(value, FakeTensor) or isinstance(value, nn.Parameter):
            if any(steps):
                raise UnlikeStatesError
            return
        known = _known_later([each[3] for each in told], value.dim(), self._num)
        places = tuple(x + self._num * y for x, y in zip(third[2], steps, strict=True))
        if steps[-1]:
            key = _storage(value)._cdata  # noqa: SLF001
            self.grown.setdefault(key, []).append((value, places, known))
        elif any(steps):  # another part of what is as large
            self._shifted.append((value, places, known))
        elif third[3]:
            self._stays[id(value)] = value, known

    def check(self) -> None:
        """Refuse where somebody else holds what is to grow, of whom it is not known how."""
        kinds = [{(x.dtype, places[-1]) for x, places, _ in each} for each in self.grown.values()]
        if any(len(kind) > 1 for kind in kinds):
            raise UnlikeStatesError
        for each in gc.get_objects() if self.grown else ():
            is_theirs = type(each) is FakeTensor and id(each) not in self._seen
            if is_theirs and _storage(each)._cdata in self.grown:  # noqa: SLF001
                raise UnlikeStatesError

    def make(self, new: NewTensor, was_moved: Callable[[int, torch.Tensor], None]) -> None:
        """Let all of it be so.

        ``new``: makes what was made in between. ``was_moved``: is told of each tensor whose storage
        stands for a smaller one, by the number of that.
        """
        for fill in self._fills:
            fill(new)
        for put in self._puts:
            put()
        for key, tensors in self.grown.items():
            some, places, _ = tensors[0]
            room = places[-1] // some.dtype.itemsize
            base = torch.empty(room, dtype=some.dtype, device=some.device)
            was_moved(key, base)
            for each in tensors:
                _lay(base, *each)
        for each in self._shifted:
            _lay(each[0], *each)
        for tensor, known in self._stays.values():
            _know(tensor, known)


def _fill(
    value: Any,
    last: Sequence[Any],
    put: Callable[[Any], None] | None,
    num_stretches: int,
    new: NewTensor,
) -> None:
    """Let a list or a tuple grow by what each of the rounds would have added.

    ``last``: what those of the last stretch did. ``put``: puts another tuple in the place of one.
    """
    made = [_like(each, num + 1, new) for num in range(num_stretches) for each in last]
    if isinstance(value, list):
        value += made
    elif put is not None:
        put(value + tuple(made))


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif type(value) in {list, tuple}:
        for each in value:
            yield from _tensors_in(each)


def _like(value: Any, num: int, new: NewTensor) -> Any:
    """Return what stands so many stretches later where a value stands."""
    if isinstance(value, torch.Tensor):
        return new(value, num)
    return type(value)(_like(x, num, new) for x in value) if type(value) in {list, tuple} else value


def _lay(
    base: torch.Tensor, tensor: torch.Tensor, places: tuple[int, ...], known: Mapping[str, Any]
) -> None:
    """Let a tensor be a part of what another lies in; the others are those of ``_Sized``."""
    rank, (*sizes, offset, _) = tensor.dim(), places
    tensor.data = base.as_strided(sizes[:rank], sizes[rank:], offset)
    _know(tensor, known)


def _know(tensor: torch.Tensor, known: Mapping[str, torch.Tensor]) -> None:
    """Let values be known of a tensor: by the twins that it has, where others share these."""
    for name in KNOWN:
        twin = vars(tensor).get(name)
        if name not in known:
            vars(tensor).pop(name, None)
            continue
        with torch._C._DisableTorchDispatch():  # noqa: SLF001
            if twin is not None and twin.shape == known[name].shape and 0 not in twin.stride():
                twin.copy_(known[name])
            else:
                vars(tensor)[name] = known[name]


def _known_later(known: Sequence[dict[str, Any]], rank: int, num: int) -> dict[str, Any]:
    """Return the values of a tensor that are known so many rounds later.

    ``known``: what is known of it in three rounds. Masks that do not change evenly are forgotten,
    as each round makes its own. Raises UnlikeStatesError: whole numbers do not.
    """
    first, second, third = known
    if not first.keys() == second.keys() == third.keys():
        return {}
    with torch._C._DisableTorchDispatch():  # noqa: SLF001
        found = {name: _values_later([x[name] for x in known], rank, num) for name in third}
    if any(x is None and third[name].dtype != torch.bool for name, x in found.items()):
        raise UnlikeStatesError
    return {name: values for name, values in found.items() if values is not None}


def _values_later(told: Sequence[torch.Tensor], rank: int, num: int) -> torch.Tensor | None:
    """Return values so many rounds on, which change evenly, or are added evenly; None: neither."""
    first, second, third = told
    grows = [x for x in range(rank) if third.shape[x] != second.shape[x]]
    if not grows:
        step, earlier = _step(second, third), _step(first, second)
        if step is None or earlier is None or not torch.equal(step, earlier):
            return None
        return third.clone() if step.dtype == torch.bool else third + num * step
    along, before = grows[0], second.shape[grows[0]]
    more = third.shape[along] - before
    if len(grows) > 1 or more > before or not torch.equal(third.narrow(along, 0, before), second):
        return None
    new = third.narrow(along, before, more)
    step = _step(second.narrow(along, before - more, more), new)
    if step is None:
        return None
    steps = [new if step.dtype == torch.bool else new + step * i for i in range(1, num + 1)]
    return torch.cat([third, *steps], along)


def _step(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor | None:
    """Return by how much values are larger than others; None: they are no whole numbers."""
    if other.dtype != torch.bool and not other.is_floating_point():
        return other - one
    return torch.zeros_like(other) if torch.equal(one, other) else None


def _are_alike(one: Told, other: Told) -> bool:
    """Whether two values are told alike, but for what is known of tensors."""
    if type(one) is int or type(other) is int or one[0] != other[0]:
        return bool(one == other)
    if one[0] == _TENSOR:
        return bool(one[1:3] == other[1:3])
    if one[0] == _ROW:
        same = one[1] == other[1] and len(one[2]) == len(other[2])
        return same and all(map(_are_alike, one[2], other[2]))
    return bool(one == other)
