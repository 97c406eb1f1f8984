"""Loops over tokens: few of their rounds run, the others are put on the tape afterwards.

A recurrence that is written in Python goes round once for every token of a text, thousands of
times, and once a few rounds did the same the others do it too. A ``for`` over ``range`` in the code
of a model's own classes is watched: where a round did what the one before did, event by event, and
left everything that the function holds as it was, and what objects and globals that it names hold,
but for lists of its own that grew, most of those that are to come are left out. What they would
have put into lists is put there, as more names of what the last round made, so that what comes
after is of its own size. The rounds that run after that are told apart on the tape by their lines;
``put_rounds`` compares them, forward and backward, and puts in as many copies as were left out.
Loops of any other kind run in full.
"""

import ast
import dis
import inspect
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from numbers import Number
from types import ModuleType, WrapperDescriptorType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from brimful.errors import OutOfTimeError
from brimful.pretend.alike import plain_kinds
from brimful.pretend.blocks import NO_UNIT, NotPeriodicError, units_of_rows
from brimful.pretend.fake_mode import alias
from brimful.pretend.real_values import UnknownValueError
from brimful.pretend.recording import Recording
from brimful.pretend.recording_builder import RecordingBuilder
from brimful.pretend.unroll import repeat_units

NUM_FIRST = 4
"""Rounds that run before others may be left out; of the last two each event is compared."""
NUM_TOLD = 6
"""Rounds that run behind them and are told apart, of which two inner ones are compared."""
FEWEST = 4 * (NUM_FIRST + NUM_TOLD)
"""Rounds of a loop of which some are left out."""
NUM_DEEP = 3
"""Objects in objects that are looked into: a module, a cache that it keeps, a layer of that."""
_NO_ATTRIBUTES = frozenset({"__dict__", "__weakref__"})
"""Slots that hold nothing of a program's."""
_HIDES = frozenset({"LIST_APPEND", "SET_ADD", "MAP_ADD", "YIELD_VALUE", "RETURN_GENERATOR"})
"""Instructions of loops that keep what they make where nobody sees it."""
_STORES = frozenset({"STORE_FAST", "STORE_FAST_LOAD_FAST"})
"""Those that give a number its name; the second, of Python 3.13, does something else behind it."""
_LONGER = "EXTENDED_ARG"
"""Stands before an instruction whose argument takes more than a byte."""
_PLAIN = (Number, np.generic, str, bytes, type(None), torch.dtype, torch.device)
_ROUND = re.compile(r" round (\d+), (\d+) left out$")
_RANGE = "range"
_LIBRARIES = frozenset({"torch", "transformers"})
_CLASSES = "transformers.models."
_HAVE_THEIR_OWN_WAY = (NotPeriodicError, OutOfTimeError, UnknownValueError)
"""Errors behind which a program is run again in another way, or never."""
_next_sequence_number = torch._C._autograd._get_sequence_nr  # noqa: SLF001


class UnlikeRoundsError(NotPeriodicError):
    """Rounds of a loop that should be alike are not; run all of them."""


class Round(NamedTuple):
    """A round of a loop of which others were left out.

    Attributes:
        place: Which of those that are told apart.
        num_left_out: Rounds that were left out.
    """

    place: int
    num_left_out: int

    def __str__(self) -> str:
        """Say it behind a line, as ``put_rounds`` reads it."""
        return f" round {self.place}, {self.num_left_out} left out"


class Rounds:
    """Which round of which loop is running, forward, and backward by the numbers of its nodes."""

    def __init__(self) -> None:
        """Know no loop yet."""
        self.now: Round | None = None
        self._numbers: list[int] = [0]
        self._rounds: list[Round | None] = [None]

    @property
    def any_left_out(self) -> bool:
        """Whether some loop was shortened."""
        return len(self._numbers) > 1

    def begin(self, which: Round | None) -> None:
        """Begin a round; None: what comes now is in none."""
        self.now = which
        self._numbers.append(_next_sequence_number())
        self._rounds.append(which)

    def told(self, line: tuple[Any, int] | None, node: Any) -> Any:
        """Return a line, and behind it the round in which it is run, if it is one that is told.

        ``node``: the running autograd node, or None.
        """
        if line is None or not self.any_left_out:
            return line
        found = self.now
        if found is None and node is not None and not hasattr(node, "variable"):
            found = self._rounds[bisect_right(self._numbers, node._sequence_nr()) - 1]  # noqa: SLF001
        return line if found is None else (*line, found)


@contextmanager
def leaving_out(tape: Any, model: nn.Module) -> Iterator[None]:
    """Leave out rounds of loops in the code of a model's own classes inside the block.

    ``tape``: a ``Tape``, which is told which round runs. ``model``: whose classes' files say
    ``range``; whatever else asks for one has the builtin.
    """
    rounds, builder = tape.rounds, tape.main
    was_asked = False

    def make(*bounds: Any) -> Any:
        nonlocal was_asked
        numbers = range(*bounds)
        if len(numbers) < FEWEST or rounds.now is not None:
            return numbers
        frame = sys._getframe(1)  # noqa: SLF001 - of the loop
        target = _target(frame)
        if target is None:
            return numbers
        was_asked = True
        return _go(numbers, rounds, builder, frame, target)

    files = _looping_files(model)
    for file in files:
        vars(file)[_RANGE] = make
    try:
        yield
    except Exception as error:
        has_its_own_way = isinstance(error, _HAVE_THEIR_OWN_WAY)
        if has_its_own_way or tape.ended_by is error or not was_asked:
            raise
        raise UnlikeRoundsError("what comes after a loop misses rounds of it") from error
    finally:
        rounds.now = None
        for file in files:
            del vars(file)[_RANGE]


def _looping_files(model: nn.Module) -> list[ModuleType]:
    """Return the files of a model's own classes in which a loop over ``range`` may be shortened.

    Its own are those whose ``forward`` runs; what PyTorch and transformers give to all classes is
    not.
    """
    classes = {cls for each in model.modules() for cls in type(each).__mro__}
    names = sorted({cls.__module__ for cls in classes if "forward" in vars(cls)})
    found = (sys.modules[name] for name in names if _is_own(name) and name in sys.modules)
    return [file for file in found if _RANGE not in vars(file) and only_loops(_source_of(file))]


def _is_own(module: str) -> bool:
    """Return whether a module is no library's but for its models."""
    return module.partition(".")[0] not in _LIBRARIES or module.startswith(_CLASSES)


def _source_of(file: ModuleType) -> str:
    try:
        return inspect.getsource(file)
    except (OSError, TypeError):  # there is none
        return ""


@lru_cache
def only_loops(source: str) -> bool:
    """Return whether a file goes over ``range`` by a plain ``for`` and only ever calls that name.

    Anything else that is asked of the name (``isinstance(x, range)``) is asked of the builtin.
    """
    if _RANGE not in source:
        return False
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError:  # it was written anew since it was read
        return False
    calls = {id(each.func): each for each in nodes if isinstance(each, ast.Call)}
    uses = [calls.get(id(x)) for x in nodes if isinstance(x, ast.Name) and x.id == _RANGE]
    loops = {id(each.iter) for each in nodes if isinstance(each, ast.For)}
    return None not in uses and any(id(each) in loops for each in uses)


def _go(
    numbers: range, rounds: Rounds, builder: RecordingBuilder, frame: Any, target: str
) -> Iterator[int]:
    """Go through numbers, faster than one by one where rounds may be left out."""
    done, states = list[Any](), list[_Held]()
    for place in range(NUM_FIRST):
        start = builder.spot()
        yield numbers[place]
        # What was done since then, but for which rows were allocated and freed.
        events = builder.events_since(start.event)
        rows = ((row >= 0, builder.facts_of(row if row >= 0 else ~row)) for row in events)
        done.append((*rows, *(cost[2:] for cost in builder.costs_since(start.cost))))
        states.append(_held(frame, target))
    num_more = len(numbers) - NUM_FIRST - NUM_TOLD
    is_alike = len(done[-1]) > 0 and done[-1] == done[-2]
    fills = _fills(states, num_more) if is_alike else None
    states.clear()
    if fills is None:
        yield from numbers[NUM_FIRST:]
        return
    while fills:
        fills.pop()()
    try:
        for place in range(NUM_TOLD):
            rounds.begin(Round(place, num_more))
            yield numbers[NUM_FIRST + num_more + place]
    finally:
        rounds.begin(None)


def _target(frame: Any) -> str | None:
    """Return the name that a loop gives its numbers; None where it is no plain loop of a function.

    ``frame``: of the function, where it calls for numbers; what comes next takes them.
    """
    code = frame.f_code
    steps = list(steps_behind(code, frame.f_lasti))
    names = [each.opname for each in steps[:3]]
    is_plain = names[:2] == ["GET_ITER", "FOR_ITER"] and names[2] in _STORES
    if not is_plain or not code.co_flags & inspect.CO_OPTIMIZED:
        return None
    _, loop, store = steps[:3]
    hides = any(each.opname in _HIDES for each in steps if each.offset < loop.argval)
    name = store.argval if isinstance(store.argval, str) else store.argval[0]
    return None if hides else str(name)


def steps_behind(code: Any, place: int) -> Iterator[dis.Instruction]:
    """Yield the instructions of a function behind one."""
    following = (each for each in dis.get_instructions(code) if each.offset > place)
    return (each for each in following if each.opname != _LONGER)


class _Held(NamedTuple):
    """What a function holds behind a round.

    Attributes:
        told: All of it by its names, but for lists and the loop's number; of objects what they
            hold too.
        lists: Lists by their identity, each with what is told of what was in it then.
    """

    told: dict[str, Any]
    lists: dict[int, tuple[list[Any], list[Any]]]


def _held(frame: Any, target: str) -> _Held:
    """Look at what a function holds, and at the globals that it names.

    Source: ``PyFrame_FastToLocalsWithError``: before Python 3.13 a frame keeps what it is asked
    for, which would let tensors live longer than they do.
    """
    values, of_file = frame.f_locals, frame.f_globals
    told = {k: _told(of_file[k]) for k in frame.f_code.co_names if k in of_file}
    told |= {k: _told(x) for k, x in values.items() if k != target and type(x) is not list}
    lists = {
        id(x): (x, [_told(each) for each in x])
        for k, x in values.items()
        if k != target and type(x) is list
    }
    if type(values) is dict:
        values.clear()
    return _Held(told, lists)


def _told(value: Any, num_deep: int = NUM_DEEP) -> Any:
    """Say of a value what has to stay the same from round to round."""
    if isinstance(value, torch.Tensor):
        return type(value), value.shape, value.stride(), value.dtype, value.requires_grad
    if isinstance(value, _PLAIN):
        return type(value), value
    inner = tuple[Any, ...]()
    if isinstance(value, (list, tuple, set, frozenset)):
        inner = tuple(_told(each, num_deep) for each in value)
    elif isinstance(value, dict):
        inner = tuple((key, _told(each, num_deep)) for key, each in value.items())
    elif isinstance(getattr(type(value), "__len__", None), WrapperDescriptorType):  # a deque
        inner = (len(value),)
    held = attributes_of(value) if num_deep else {}
    return type(value), inner, tuple((k, _told(x, num_deep - 1)) for k, x in held.items())


def attributes_of(value: Any) -> dict[str, Any]:
    """Return what an object holds by names of its own; nothing of a module, which is a file."""
    if isinstance(value, ModuleType):
        return {}
    slots = (vars(cls).get("__slots__", ()) for cls in type(value).__mro__)
    names = (x for each in slots for x in ([each] if isinstance(each, str) else each))
    found = {name: getattr(value, name, None) for name in names if name not in _NO_ATTRIBUTES}
    return {**found, **getattr(value, "__dict__", {})}


def _fills(states: Sequence[_Held], num_more: int) -> list[Callable[[], None]] | None:
    """Return what puts into lists what rounds that are left out would; None: nobody can say."""
    first, second, third = states[-3:]
    if not first.told == second.told == third.told or not (
        first.lists.keys() == second.lists.keys() == third.lists.keys()
    ):
        return None
    found = list[Callable[[], None]]()
    for key, (values, then) in third.lists.items():
        (_, before), (_, at_first) = second.lists[key], first.lists[key]
        grown = len(then) - len(before)
        if grown < 0 or grown != len(before) - len(at_first):
            return None
        is_kept = then[: len(before)] == before and before[: len(at_first)] == at_first
        is_plain = all(type(each) is FakeTensor for each in values[len(before) :])
        if not (is_kept and is_plain) or then[len(before) :] != before[len(at_first) :]:
            return None
        if grown:
            found.append(partial(_fill, values, grown, num_more))
    return found


def _fill(values: list[Any], grown: int, num_more: int) -> None:
    """Let a list grow as rounds that are left out would let it, by names of what there is.

    What is named stands there by one of its names too, so that it has one gradient and no sum.
    """
    names = [_Names.apply(each, num_more + 1) for each in values[-grown:]]
    values[-grown:] = [each for made in zip(*names, strict=True) for each in made]


class _Names(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped to mypy
    """More names of a tensor; it has the gradient of one of them."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, num: int) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(alias(tensor) for _ in range(num))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:  # noqa: ARG004
        return next((each for each in gradients if each is not None), None), None


def put_rounds(recording: Recording) -> Recording:
    """Put the rounds of loops on a tape that were left out."""
    found = [_ROUND.search(line) for line in recording.lines]
    if not any(found):
        return recording
    of_line = [(int(m[1]), int(m[2])) if m else (NO_UNIT, 0) for m in found]
    place, num_left_out = np.array(of_line)[recording.line].T
    numbers = dict[str, int]()
    lines = [numbers.setdefault(_ROUND.sub("", each), len(numbers)) for each in recording.lines]
    done = replace(
        recording, lines=tuple(numbers), line=np.array(lines, dtype=np.int32)[recording.line]
    )
    for num in sorted({num for _, num in of_line if num}):
        unit = np.where(num_left_out == num, place, NO_UNIT)
        units = units_of_rows(done, unit, NUM_TOLD, are_small=True)
        try:
            copied, _ = repeat_units(done, units, num_copies=num, kinds=plain_kinds(done))
        except NotPeriodicError as error:
            raise UnlikeRoundsError(f"of a loop: {error}") from error
        done, place, num_left_out = copied.recording, place[copied.row], num_left_out[copied.row]
    return done
