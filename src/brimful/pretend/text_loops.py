"""Loops that write a text: few of their rounds run, the others are put on the tape at once.

A text is written token by token, each by a pass of the whole model over one more than the last.
Where a module is called again and again from the same place of a loop, without gradients, two
stretches of rounds that were alike but for what grew evenly tell all further ones
(``stretches.py``), and what the loop holds is put on to where it will be then (``loop_state.py``),
up to a round that the loop may tell from others (``loop_tests.py``).
The last rounds run on that, and have to do what was told of them; else the program is run again,
with longer stretches, and then with all rounds. How many there are is said by the longest text of
transformers' loops, and by the ``range`` of a script's own. A pretend text has its full length:
nobody knows when it would end.
"""

import dis
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch.nn.modules import module as hooks

from brimful.pretend.blocks import NotPeriodicError
from brimful.pretend.loop_state import State
from brimful.pretend.loop_tests import asked_in, first_unlike
from brimful.pretend.outer_lines import OuterLines
from brimful.pretend.rounds import only_loops, steps_behind
from brimful.pretend.stretches import Edge, Law, holds, law_of, moves_of
from brimful.pretend.telling import UnlikeStatesError
from brimful.pretend.when_imported import when_imported

if TYPE_CHECKING:
    from brimful.pretend.session import Run

PERIODS = (8, 64)
"""Rounds of a stretch: masks are padded to multiples of 8, scores to 32; the second is tried where
the first is not borne out."""
_NUM_EDGES = 3
"""Of two stretches, which tell the others."""
_NUM_STATES = 3
"""Rounds of which it is looked what the loop holds."""
_MOST_FUNCTIONS = 8
"""Between a loop and the model that it calls."""
_HANDS_ON = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""Of functions that let others run between two rounds."""
_CRITERIA = "transformers.generation.stopping_criteria"


class UnlikeTextError(NotPeriodicError):
    """Rounds did not do what was told of them; run more of them."""


class _Spot(NamedTuple):
    """What is on a tape where a round begins.

    Attributes:
        edges: Of each device's recording.
        work: Of the tape, see ``TimedTape.work_done``.
        left: Rounds that are to come, with this one.
    """

    edges: dict[Any, Edge]
    work: Any
    left: int


class _Told(NamedTuple):
    """What rounds that run have to bear out.

    Attributes:
        laws: What they do, by device.
        num: Stretches on from those that the laws are of.
        spots: Where these, and the one that is to come, begin.
    """

    laws: dict[Any, Law]
    num: int
    spots: tuple[_Spot, ...]


class _Numbers:
    """What a script's ``for`` goes through: numbers of which some may be passed over.

    Attributes:
        passed: How many were taken.
        asked: Conditions of the loop's body, see ``asked_in``.
    """

    def __init__(self, numbers: range, asked: Sequence[Any]) -> None:
        self._numbers, self.passed, self.asked = numbers, 0, asked

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        if self.passed >= len(self._numbers):
            raise StopIteration
        self.passed += 1
        return self._numbers[self.passed - 1]

    @property
    def left(self) -> int:
        """How many rounds are to come, with the one that is running."""
        return len(self._numbers) - self.passed + 1


class TextLoops:
    """Follows the loop that is running.

    Attributes:
        any_left_out: Whether rounds were.
        unlike: Whether some did not do what was told of them.
    """

    def __init__(self, run: "Run", period: int) -> None:
        """Know no loop yet; ``period``: rounds of a stretch."""
        self.any_left_out = self.unlike = False
        self._tape, self._known, self._period = run.tape, run.known, period
        self._lines, self._source = OuterLines(), ""
        self._left: int | None = None
        self._ranges: list[tuple[int, weakref.ref[_Numbers]]] = []
        self._key: Any = None
        self._spots: list[_Spot] = []
        self._states: list[Any] = []
        self._told: _Told | None = None

    @property
    def is_borne_out(self) -> bool:
        """Whether rounds that ran did all that was told of them."""
        return self._told is None and not self.unlike

    def criteria_asked(self, num_left: int) -> None:
        """Hear how many tokens a text lacks."""
        self._left = num_left

    def names_for(self, source: str) -> dict[str, Any]:
        """Return the names that a script is given: ``range``, where it only goes through that."""
        self._source = source
        return {"range": self._numbers} if self._period and only_loops(source) else {}

    def _numbers(self, *bounds: Any) -> Any:
        """Return what a loop goes through; anything else has the builtin."""
        numbers, frame = range(*bounds), sys._getframe(1)  # noqa: SLF001
        is_long = len(numbers) >= 3 * self._period
        if not is_long or not _begins_a_loop(frame.f_code, frame.f_lasti):
            return numbers
        made = _Numbers(numbers, asked_in(self._source, frame.f_lineno))
        self._ranges = [each for each in self._ranges if each[1]() is not None]
        self._ranges.append((id(frame), weakref.ref(made)))
        return made

    def _numbers_of(self, frame: Any) -> _Numbers | None:
        """Return what the innermost loop of a function goes through; None: it is not ours."""
        found = (numbers() for of, numbers in reversed(self._ranges) if of == id(frame))
        return next((numbers for numbers in found if numbers is not None), None)

    def end(self) -> None:
        """Hear that whatever loop was running is over. Raises UnlikeTextError."""
        if self._told is not None:
            self._fail()
        self._key = None
        self._spots.clear()
        self._states.clear()

    def _fail(self) -> None:
        self._told, self.unlike = None, True
        raise UnlikeTextError("rounds of a loop that writes a text are not as even as they seemed")

    def enter(self, module: Any, args: Any) -> Any:
        """Hear that a module is called; return what it is given in the place of its arguments."""
        if self._tape.owners.num_called > 1:
            return None
        left, self._left = self._left, None
        frames = self._functions() if not torch.is_grad_enabled() else []
        key = (id(frames[-1]), *((x.f_code, x.f_lasti) for x in frames)) if frames else None
        if key is None or key != self._key:
            self.end()
            self._key = key
        numbers = self._numbers_of(frames[-1]) if frames and left is None else None
        left = left if numbers is None else numbers.left
        if left is None or (self._spots and left != self._spots[-1].left - 1):
            self.end()
            self._key = key
        if key is None or left is None:
            return None
        self._spots = [*self._spots[-2 * self._period :], self._spot(left)]
        if self._told is not None:
            self._compare()
        if self._told is None and len(self._spots) > 2 * self._period + 1 - _NUM_STATES:
            return self._with_changed(frames, module, args, numbers)
        return None

    def _with_changed(
        self, frames: list[Any], module: Any, args: tuple[Any, ...], numbers: _Numbers | None
    ) -> Any:
        """Leave rounds out, and return the arguments as they are then."""
        keywords = _keywords(sys._getframe(2))  # noqa: SLF001 - of PyTorch's call
        given: dict[Any, Any] = {**dict(enumerate(args)), **keywords}
        state = State(frames, module, given, self._known)
        num = self._go_on(state, () if numbers is None else numbers.asked)
        if numbers is not None:
            numbers.passed += num
        keywords.update((name, given[name]) for name in keywords)
        return tuple(given[place] for place in range(len(args)))

    def _functions(self) -> list[Any]:
        """Return the frames of the functions from the one that calls a model out to the loop.

        Nothing where a round ends in somebody else's hands, who does what nobody sees with it.
        """
        found = list[Any]()
        frame: Any = sys._getframe(2)  # noqa: SLF001
        while frame is not None and len(found) < _MOST_FUNCTIONS:
            if self._lines.is_program(frame.f_code):
                found.append(frame)
                if frame.f_code.co_flags & _HANDS_ON:
                    return []
                if _is_in_loop(frame.f_code, frame.f_lasti):
                    return found
            frame = frame.f_back
        return []

    def _spot(self, left: int) -> _Spot:
        edges = {where: Edge.of(builder) for where, builder in self._tape.builders.items()}
        return _Spot(edges, self._tape.work_done(), left)

    def _compare(self) -> None:
        """Look whether rounds did what was told of them, once a stretch of them is over."""
        told = self._told
        if told is None or len(self._spots) <= self._period:
            return
        start, stop = self._spots[0], self._spots[self._period]
        builders = self._tape.builders
        for where, law in told.laws.items():
            edges = start.edges[where], stop.edges[where]
            if not holds(law, told.num + 1, builders[where], edges):
                self._fail()
        if start.edges.keys() != told.laws.keys():
            self._fail()
        self._told = None
        self._tape.work_on([x.work for x in (*told.spots, start, stop)], told.num)

    def _go_on(self, state: State, asked: Sequence[Any]) -> int:
        """Leave rounds out where it is known what they do; return how many.

        ``asked``: conditions of the loop, which those and the ones that run then answer alike.
        """
        try:
            self._states = [*self._states[1 - _NUM_STATES :], state.told()]
        except UnlikeStatesError:
            self._states.clear()
            return 0
        spots = self._spots[-1 - 2 * self._period :: self._period]
        if len(spots) < _NUM_EDGES or len(self._states) < _NUM_STATES:
            return 0
        laws = self._laws(spots)
        if laws is None:
            return 0
        left = self._spots[-1].left
        if asked:
            left = first_unlike(asked, state.by_name(self._states), self._period, left)
        # What runs then is compared when one more round begins.
        num = (left - 1) // self._period - 1
        if num < 1:
            return 0
        try:
            change = state.later(self._states, num * self._period, self._period)
            moves = {x: moves_of(law, self._tape.builders[x], num) for x, law in laws.items()}
            self._tape.put_stretches(moves, change)
        except UnlikeStatesError:  # and will be for a while
            self._spots.clear()
            return 0
        self.any_left_out = True
        self._told = _Told(laws, num, tuple(spots))
        self._states.clear()
        self._spots = [self._spot(self._spots[-1].left - num * self._period)]
        return num * self._period

    def _laws(self, spots: list[_Spot]) -> dict[Any, Law] | None:
        """Return what further stretches do, by device; None: on one of them nobody knows it."""
        found = dict[Any, Law]()
        for where, builder in self._tape.builders.items():
            edges = [spot.edges[where] for spot in spots if where in spot.edges]
            law = law_of(builder, edges) if len(edges) == _NUM_EDGES else None
            if law is None:
                return None
            found[where] = law
        return found


@cache
def _begins_a_loop(code: Any, place: int) -> bool:
    """Return whether what an instruction makes is what a plain ``for`` goes through."""
    following = islice(steps_behind(code, place), 2)
    return [each.opname for each in following] == ["GET_ITER", "FOR_ITER"]


@cache
def _is_in_loop(code: Any, place: int) -> bool:
    """Return whether an instruction lies between a jump backwards and where that goes."""
    jumps = (each for each in dis.get_instructions(code) if each.opcode in dis.hasjrel)
    return any(each.argval <= place < each.offset for each in jumps)


def _keywords(frame: Any) -> dict[str, Any]:
    """Return the keyword arguments of a module's call, which may be changed there.

    ``frame``: of what calls its hooks.
    """
    values = frame.f_locals
    found: dict[str, Any] = values["kwargs"]
    if type(values) is dict:  # it would keep what it names
        values.clear()
    return found


@contextmanager
def leaving_out_tokens(run: "Run", period: int) -> Iterator[TextLoops]:
    """Leave out rounds of loops that write texts inside the block.

    ``period``: rounds of a stretch; 0: none are left out.
    """
    loops = TextLoops(run, period)
    with ExitStack() as stack:
        if period:
            handle = hooks.register_module_forward_pre_hook(loops.enter)
            stack.callback(handle.remove)
            stack.enter_context(when_imported({_CRITERIA: partial(_asking, loops.criteria_asked)}))
        yield loops
        loops.end()


def _asking(told: Callable[[int], None], library: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield what lets it be known how many tokens a text lacks."""
    original = library.MaxLengthCriteria.__call__

    def asked(self: Any, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        told(self.max_length - input_ids.shape[1])
        return original(self, input_ids, *args, **kwargs)

    yield library.MaxLengthCriteria, "__call__", asked
