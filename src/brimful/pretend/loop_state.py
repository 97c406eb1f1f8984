"""What a loop holds between two rounds, and what it will hold many rounds later.

Of three rounds in a row everything is told that the loop's functions can name, and the script's own
that they call (``reachable.py``): numbers, tensors, what is in lists and what objects keep. Where
each number, and each size of a tensor, is as much larger in the third as it was in the second, any
later round's are known, and are put where the loop finds them: a tensor stays the object that it
was, with other sizes. What is random, an iterator, and a number that changes in another way are
known to nobody; of a loop that reads a clock such numbers are taken for times.
"""

import ctypes
import gc
import inspect
import math
import operator
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from brimful.pretend.known_values import KNOWN, KnownValues
from brimful.pretend.reachable import Put, reachable
from brimful.pretend.rounds import attributes_of
from brimful.pretend.script_lines import is_library
from brimful.pretend.telling import (
    CODE,
    FLOAT,
    OBJECT,
    ROW,
    TABLE,
    TENSOR,
    Teller,
    Told,
    UnlikeStatesError,
    storage_of,
)

_LOCALS_ARE_A_COPY = sys.version_info < (3, 13)
_CLOCKS = frozenset({
    "time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "process_time", "now",
    "elapsed_time",
})  # fmt: skip
"""What tells the time, by its name: of Python's clocks, and of a device's events."""
_CLOSE = 1e-9
"""Share of a step by which steps of floats are alike."""

NewTensor = Callable[[torch.Tensor, int], torch.Tensor]
"""Makes what stands so many stretches later where a tensor stands that each round makes anew."""
_Sized = tuple[torch.Tensor, tuple[int, ...], dict[str, Any]]
"""A tensor, its shape, strides, offset and the bytes that it lies in, and what is known of it."""


class _Root(NamedTuple):
    """Something that is held.

    Attributes:
        value: It.
        put: Puts another in its place; None: nobody can.
        is_theirs: Whether the script's own holds it, and no library.
        name: By which the function that has the loop calls it; empty: by none.
    """

    value: Any
    put: Put | None = None
    is_theirs: bool = True
    name: str = ""


class State:
    """What functions hold, and what the module that the innermost of them calls is given.

    ``frames``: of these functions. ``module``: that is called. ``given``: its arguments, by name.
    """

    def __init__(
        self, frames: Sequence[Any], module: nn.Module, given: dict[Any, Any], known: KnownValues
    ) -> None:
        """Look at nothing yet."""
        self._frames, self._module, self._given = frames, module, given
        names = {name for frame in frames for name in frame.f_code.co_names}
        self._teller = Teller(known, reads_a_clock=not _CLOCKS.isdisjoint(names))

    def told(self) -> tuple[Told, ...]:
        """Tell what is held now. Raises UnlikeStatesError: nobody sees all of it."""
        return tuple(self._teller.tell(x.value, is_theirs=x.is_theirs) for x in self._roots())

    def by_name(self, states: Sequence[tuple[Told, ...]]) -> dict[str, Sequence[Told]]:
        """Return what is told of the names of the function that has the loop, in each state."""
        every = zip(self._roots(), *states, strict=False)
        return {root.name: told for root, *told in every if root.name}

    def later(self, states: Sequence[tuple[Told, ...]], num: int, period: int) -> "Change":
        """Return what lets all of it be as it will be so many rounds later.

        ``states``: of the last three rounds, the last of them now. ``period``: rounds of a stretch.
        Raises UnlikeStatesError: nobody knows that.
        """
        change = Change(num, period)
        roots = list(self._roots())
        if not all(len(state) == len(roots) for state in states):
            raise UnlikeStatesError
        for root, *told in zip(roots, *states, strict=True):
            change.add(root.value, told, root.put)
        change.check()
        return change

    def _roots(self) -> Iterator[_Root]:
        """Yield what is held."""
        named = list({id(each): each for each in self._called()}.values())
        for frame in self._frames:
            is_theirs = not is_library(frame.f_code.co_filename)
            is_loops = frame is self._frames[-1]
            for name, value in _names_of(frame).items():
                named.append(value)
                if not isinstance(value, CODE):
                    put = partial(_assign, frame, name)
                    yield _Root(value, put, is_theirs, name.removeprefix(".") if is_loops else "")
        yield from (_Root(*each) for each in reachable(named))
        yield _Root((random.getstate(), np.random.get_state()))  # noqa: NPY002 - the script's
        for key, value in self._given.items():
            yield _Root(value, partial(operator.setitem, self._given, key))
        for module in self._module.modules():
            own = {k: x for k, x in vars(module).items() if k not in _OF_MODULES}
            held = tuple(own), tuple(own.values()), module._buffers  # noqa: SLF001
            yield _Root(held, is_theirs=False)

    def _called(self) -> Iterator[Any]:
        """Yield classes and functions that the module runs, hooks among them."""
        for module in self._module.modules():
            yield type(module)
            yield from module._forward_pre_hooks.values()  # noqa: SLF001
            yield from module._forward_hooks.values()  # noqa: SLF001
            yield from (x for x in vars(module).values() if isinstance(x, _FUNCTIONS))


_FUNCTIONS = (FunctionType, MethodType, partial)
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
        return named
    values = frame.f_locals
    found = {f".{k}": x for k, x in named.items()} | dict(values)
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
        self._rows: set[int] = set()
        self._stays: dict[int, tuple[torch.Tensor, dict[str, torch.Tensor]]] = {}
        self._shifted: list[_Sized] = []
        self.kept: list[torch.Tensor] = []
        self.grown: dict[int, list[_Sized]] = {}

    def add(self, value: Any, told: Sequence[Told], put: Put | None) -> None:
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
        if int in map(type, told) or not first[0] == second[0] == third[0]:
            raise UnlikeStatesError
        if third[0] == FLOAT:
            self._add_float([each[1] for each in told], put)
        elif third[0] == TENSOR:
            self._add_tensor(value, told)
        elif third[0] == ROW:
            self._add_row(value, told, put)
        elif third[0] in {TABLE, OBJECT}:
            self._add_held(value, told)
        elif not first == second == third:
            raise UnlikeStatesError

    def _add_float(self, told: Sequence[float | None], put: Put | None) -> None:
        """Look at a number that is not whole; None: it may be a time."""
        first, second, third = told
        if first == second == third or first is None or second is None or third is None:
            return
        step = third - second
        if put is None or not math.isclose(step, second - first, rel_tol=_CLOSE):
            raise UnlikeStatesError
        self._puts.append(partial(put, third + self._num * step))

    def _add_held(self, value: Any, told: Sequence[Told]) -> None:
        """Look at what a dictionary or an object keeps."""
        first, second, last = told
        if not first[1:-1] == second[1:-1] == last[1:-1]:
            raise UnlikeStatesError
        if last[0] == TABLE:
            held: dict[Any, Any] = value
            puts = [partial(operator.setitem, value, key) for key in held]
        else:
            held = attributes_of(value) if last[-1] else {}
            puts = [partial(setattr, value, key) for key in held]
        inner = (each[-1] for each in told)
        for each, put, *theirs in zip(held.values(), puts, *inner, strict=True):
            self.add(each, theirs, put)

    def _add_row(self, value: Any, told: Sequence[Told], put: Put | None) -> None:
        """Look at a list or a tuple, which may grow by as many elements each time."""
        first, second, third = (each[2] for each in told)
        if not told[0][1] == told[1][1] == told[2][1]:
            raise UnlikeStatesError
        if isinstance(value, list):
            if id(value) in self._rows:  # by another name
                return
            self._rows.add(id(value))
        grown = len(third) - len(second)
        if grown < 0 or grown != len(second) - len(first):
            raise UnlikeStatesError
        is_list, changed = isinstance(value, list), dict[int, Any]()
        holder = value if is_list else changed if put and not grown else None
        for place, theirs in enumerate(zip(first, second, third, strict=False)):
            put_it = None if holder is None else partial(operator.setitem, holder, place)
            self.add(value[place], theirs, put_it)
        if holder is changed and put:
            self._puts.append(partial(_put_with, value, changed, put))
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
            key = storage_of(value)._cdata  # noqa: SLF001
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
            if is_theirs and storage_of(each)._cdata in self.grown:  # noqa: SLF001
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


def _put_with(value: Any, changed: Mapping[int, Any], put: Put) -> None:
    """Put a tuple with other elements in the place of one, if there are any."""
    if changed:
        made = [changed.get(place, x) for place, x in enumerate(value)]
        put(value._make(made) if hasattr(value, "_make") else type(value)(made))


def _fill(
    value: Any,
    last: Sequence[Any],
    put: Put | None,
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
    if one[0] == TENSOR:
        return bool(one[1:3] == other[1:3])
    if one[0] == ROW:
        same = one[1] == other[1] and len(one[2]) == len(other[2])
        return same and all(map(_are_alike, one[2], other[2]))
    return bool(one == other)
