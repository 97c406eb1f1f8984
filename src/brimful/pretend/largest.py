"""``brimful pretend --largest NAME``: the largest value of a script's own argument that fits.

The script is run again with few other values: what it would ask for with the others is computed
from these (``size_law.py``) and replayed, and the value that is told is run. Where its runs are not
of one kind, it is run as often as it takes. What it prints then is dropped.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from brimful.errors import InputError
from brimful.pretend.script_arguments import Declared, Given, declared_by, find_given
from brimful.pretend.scripts import written_in
from brimful.values.plan import Word

if TYPE_CHECKING:
    from brimful.pretend.recording import Recording
    from brimful.pretend.size_law import Law

MOST_RUNS, MOST_MORE_RUNS = 16, 8
"""For the largest that may fit, and for the largest that surely does."""
FINEST = 32
"""Parts of the value that was given, to one of which the largest is found."""
_MOST_LAWS = 6
"""Runs after which a script that each run says something else of is run by halves."""
_MOST_REFUSALS = 8
"""Of values, after which a program is asked for no other."""
_FARTHEST = 16
"""How often the largest value yet may be taken for a second run."""
_MOST_DEFAULT = 2**40
"""The largest default that is taken for a size."""


class Tried(NamedTuple):
    """What is known of one value.

    Attributes:
        word: Whether it fits.
        num_bytes: What the allocator would hold that is never refused.
        recording: What was recorded, where it was run.
        refused: What the program said that does not take it; empty: it does.
    """

    word: Word
    num_bytes: int = 0
    recording: "Recording | None" = None
    refused: str = ""


class Aim(NamedTuple):
    """What values are measured by.

    Attributes:
        sure_bytes: What the allocator may hold whatever lies outside of it.
        capacity_bytes: What it may hold at most.
        state_bytes: What parameters, gradients and the optimizer's state take.
        replayed: Says what becomes of what was computed.
    """

    sure_bytes: int
    capacity_bytes: int
    state_bytes: int
    replayed: "Callable[[Recording], Tried]"


Run = Callable[[Sequence[str]], Tried]
"""Runs a program with its arguments."""


class Argument(NamedTuple):
    """A number among a script's arguments.

    Attributes:
        flag: As it is typed.
        value: What was given.
        place: Of the word that holds the value.
        prefix: What stands before the value in that word.
    """

    flag: str
    value: int
    place: int
    prefix: str


class Largest(NamedTuple):
    """What was found.

    Attributes:
        flag: The argument.
        value: The largest value that fits; None: not even the smallest that was tried.
        beyond: The smallest that does not fit; None: all that were tried do.
        num_runs: How often the script was run for it.
        sure: The largest that fits with room to spare; None: the smallest that was tried does not.
        num_replays: Of how many other values what they would ask for was replayed.
        beyond_bytes: What the allocator would hold with that; 0: it was not run.
        refused: What the program said of that, where it does not take it; empty: it does. Where
            nothing fits: what it said of the first that it does not take.
        is_idle: Whether memory is the same with every value.
        is_whole: Whether all was tried; else it was interrupted.
        above: The largest beyond what does not fit that does all the same, by its own run: blocks
            of the allocator fall otherwise; None: there is none.
    """

    flag: str
    value: int | None
    beyond: int | None
    num_runs: int
    sure: int | None = None
    num_replays: int = 0
    beyond_bytes: int = 0
    refused: str = ""
    is_idle: bool = False
    is_whole: bool = True
    above: int | None = None


def with_default(program: Sequence[str], name: str) -> list[str]:
    """Return a program with an argument as its own text says that it is where nobody gives it.

    ``name``: of the argument, with dashes in front or without. Returns the program as it is where
    it is given the argument, or no default of it can be seen.
    """
    every = declared_by(program[0])
    meant = [each for each in every if each.is_called(name)]
    if not meant or _given(program, name, every) is not None:
        return list(program)
    (flag, default), *_ = [*_counted(meant), ("", 0)]
    return [*program, flag, str(default)] if flag else list(program)


def counted(program: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield the flags whose default is a whole number in a script's text, each as it is spelled."""
    return _counted(declared_by(program[0]))


def _counted(declared: Sequence[Declared]) -> Iterator[tuple[str, int]]:
    for each in declared:
        if type(each.default) is int and 0 < each.default <= _MOST_DEFAULT:
            yield max(each.names, key=len), each.default


def _given(program: Sequence[str], name: str, every: Sequence[Declared]) -> Given | None:
    """Find an argument of a script by its name; what is no argument of its text by this alone."""
    names = {name if name.startswith("-") else f"--{name}"}
    names.update(known for each in every if each.is_called(name) for known in each.names)
    others = [known for each in every for known in each.names]
    found = find_given(program[1:], names, others=others)
    return found and found._replace(place=found.place + 1)


def argument_of(program: Sequence[str], name: str) -> Argument:
    """Find an argument of a script by its name, where it is given last.

    ``name``: with dashes in front or without.
    """
    given = _given(program, name, declared_by(program[0]))
    if given is None:
        flag = name if name.startswith("-") else f"--{name}"
        for constant, value in written_in(program[0]):
            if constant == name.lstrip("-"):
                raise InputError(
                    f"--largest {name}: {constant} = {value} is written in {program[0]}, which "
                    f"takes no argument for it; without --largest a proportion says what fits"
                )
        raise InputError(
            f"--largest {name}: the script is not given {flag}, and its text says no default of "
            f"it; put {flag} N behind {program[0]}, with a number to begin from such as {flag} 1"
        )
    if not given.value.isdecimal() or int(given.value) < 1:
        raise InputError(
            f"--largest {name}: {given.flag} is given {given.value!r}, which is no count"
        )
    return Argument(given.flag, int(given.value), given.place, given.prefix)


def with_value(program: Sequence[str], argument: Argument, value: int) -> list[str]:
    """Return a program with another value of an argument."""
    changed = list(program)
    changed[argument.place] = f"{argument.prefix}{value}"
    return changed


def value_in(program: Sequence[str], argument: Argument) -> int:
    """Return the value of an argument in a program; see ``with_value``."""
    return int(program[argument.place].removeprefix(argument.prefix))


def step_of(value: int) -> int:
    """Return the step by which values are tried: sizes are mostly multiples of powers of two."""
    step = 1
    while value % (2 * step) == 0 and 2 * step * FINEST <= value:
        step *= 2
    return step


def find_largest(
    program: Sequence[str], argument: Argument, run: Run, *, first: Tried, aim: Aim | None = None
) -> Largest:
    """Find the largest value with which a program fits, where more of it takes more memory.

    ``first``: what is known of it as it was given. ``aim``: what values are measured by; None: runs
    alone say. Returns what was found; what was found until then where it was interrupted.
    """
    search = _Search(program, argument, run, first, aim)
    try:
        return search.by_law(aim) or search.by_halves() if aim else search.by_halves()
    except KeyboardInterrupt:
        return search.found()._replace(is_whole=False)


class _Search:
    """What was tried, by how many steps each value is; see ``step_of``."""

    def __init__(
        self,
        program: Sequence[str],
        argument: Argument,
        run: Run,
        first: Tried,
        aim: Aim | None,
    ) -> None:
        self._program, self._argument, self._run, self._aim = program, argument, run, aim
        self._step = step_of(argument.value)
        self._given = argument.value // self._step
        self._tried: dict[int, Tried] = {0: Tried("fits"), self._given: first}

    def _probe(self, count: int) -> Tried:
        if count not in self._tried:
            changed = with_value(self._program, self._argument, count * self._step)
            self._tried[count] = self._run(changed)
        return self._tried[count]

    def _words(self) -> dict[int, Word]:
        """Return what is known of each value, refusals where memory sets no bound above them."""
        words = {n: each.word for n, each in self._tried.items() if not each.refused}
        most, beyond = _bounds(words, ("fits", "tight"))
        if beyond is not None:  # a value that is taken: what is refused is no limit of the program
            return words
        return {n: each.word for n, each in self._tried.items() if not each.refused or n > most}

    def _refusals(self) -> list[str]:
        return [each.refused for each in self._tried.values() if each.refused]

    def found(self, foretold: dict[int, Word] | None = None) -> Largest:
        """Return what the runs say, and what was foretold of other values."""
        untried = {n: word for n, word in (foretold or {}).items() if n not in self._tried}
        words = {**untried, **self._words()}
        sure, _ = _bounds(words, ("fits",))
        most, beyond = _bounds(words, ("fits", "tight"))
        last = self._tried.get(beyond or 0, Tried("no"))
        above = max(
            (n for n, word in words.items() if word != "no" and n > (beyond or n)), default=0
        )
        return Largest(
            self._argument.flag,
            most * self._step or None,
            None if beyond is None else beyond * self._step,
            len(self._tried) - 2,
            sure * self._step or None,
            len(untried),
            beyond_bytes=last.num_bytes,
            refused=last.refused if most else "".join(self._refusals()[:1]),
            above=above * self._step or None,
        )

    # -- by what is computed from few runs --

    def by_law(self, aim: Aim) -> Largest | None:
        """Compute what other values ask for, and run what is told; None: it cannot be computed."""
        if known := self._at_once(aim):
            return known
        is_checked = False
        for _ in range(_MOST_LAWS):
            if self._refusals():  # of what may be told, each has to be run
                return None
            guess = self._by_line(aim.sure_bytes)
            law = self._law(guess or self._given)
            if law is None:
                # The next one most likely asks for the same in the same order.
                near = guess or 0
                beside = (n for n in (near, near + 1, near - 1) if n > 0)
                fresh = next((n for n in beside if n not in self._tried), None)
                if fresh is None:
                    return None
                self._probe(fresh)  # a second one of the kind that runs near it are of
                continue
            words = self._foretold(law, aim)
            if words is None:  # too far from what was run to be foretold
                self._probe(self._farthest())
                continue
            sure, _ = _bounds(words, ("fits",))
            most, _ = _bounds(words, ("fits", "tight"))
            told = sure or most or 1
            if told in self._tried and is_checked:
                return self.found(words)
            # What was run for the law says nothing of it: beside it is a run that does.
            self._probe(told + 1 if told in self._tried else told)
            is_checked = True
        return None

    def _at_once(self, aim: Aim) -> Largest | None:
        """Return what one more run says, where that is all: nothing fits, or all are alike."""
        for count in (self._given, self._second(aim)):
            tried = self._probe(count)
            if tried.word == "no" and not tried.refused and count == 1:
                return self.found()  # not even the least of it
        if self._is_idle():
            self._probe(self._farthest())
            if self._is_idle():
                return self.found()._replace(is_idle=True)
        return None

    def _is_idle(self) -> bool:
        """Whether what was run takes the same memory with each value, as far as it was recorded."""
        found = [each.recording for each in self._tried.values() if each.recording is not None]
        asked = {int(recording.num_bytes.sum()) for recording in found}
        return len(asked) == 1 and not self._refusals()

    def _second(self, aim: Aim) -> int:
        """Return the value to run beside the one that was given: the largest, as far as is seen.

        All that is no state is taken to grow with it.
        """
        given, first = self._given, self._tried[self._given]
        grows = (first.num_bytes - aim.state_bytes) / given
        room = aim.sure_bytes - aim.state_bytes
        most = _FARTHEST * given
        count = max(1, min(most, int(room / grows))) if grows > 0 else most
        if count != given:
            return count
        return given - 1 if first.word == "no" and given > 1 else given + 1

    def _by_line(self, aimed_bytes: int) -> int | None:
        """Return which value holds so much, by a straight line through the two that are nearest."""
        sizes = {n: each.num_bytes for n, each in self._tried.items() if each.num_bytes}
        nearest = sorted(sizes, key=lambda n: abs(sizes[n] - aimed_bytes))[:2]
        if len(nearest) < 2:  # noqa: PLR2004 - a line has two
            return None
        one, other = nearest
        slope = (sizes[one] - sizes[other]) / (one - other)
        if slope <= 0:
            return None
        count = int(one + (aimed_bytes - sizes[one]) / slope)
        return max(1, min(count, _FARTHEST * max(sizes)))

    def _farthest(self) -> int:
        """Return the largest value of which something may be said by what was run."""
        return _FARTHEST * max(n for n, each in self._tried.items() if each.recording is not None)

    def _law(self, near: int) -> "Law | None":
        from brimful.pretend.size_law import law_of

        found = {n: each.recording for n, each in self._tried.items() if each.recording is not None}
        return law_of(found, near=near) if len(found) > 1 else None

    def _foretold(self, law: "Law", aim: Aim) -> dict[int, Word] | None:
        """Replay what values would ask for, until the largest of each kind is known."""
        told: dict[int, Word] = {0: "fits"}
        high = max(1, self._by_line(aim.sure_bytes) or self._given)
        for meant in (("fits", "tight"), ("fits",)):
            for _ in range(2 * MOST_RUNS):
                low, beyond = _bounds(told, meant)
                if beyond is not None and beyond - low <= 1:
                    break
                count = (low + beyond) // 2 if beyond is not None else max(high, 2 * low)
                if beyond is None and count > self._farthest():
                    return None
                near = [n for n in (high, high + 1) if low < n < (beyond or n + 1)]
                count = near[0] if near else count
                told[count] = aim.replayed(law(count)).word
        return told

    # -- by runs alone --

    def by_halves(self) -> Largest:
        """Run it with twice as much until it does not fit, and then between what does and not."""
        low, high = _bounds(self._words(), ("fits", "tight"))
        while high is None and len(self._tried) <= MOST_RUNS + 1:
            self._probe(2 * low)
            low, high = _bounds(self._words(), ("fits", "tight"))
        for meant, most in (
            (("fits", "tight"), MOST_RUNS),
            (("fits",), MOST_RUNS + MOST_MORE_RUNS),
        ):
            low, high = _bounds(self._words(), meant)
            while high is not None and len(self._tried) <= most + 1:
                count = self._between(low, high)
                if count is None:
                    break
                self._probe(count)
                low, high = _bounds(self._words(), meant)
        return self.found()

    def _between(self, low: int, high: int) -> int | None:
        """Return what to try next: by the line through what was run, or the half; None: nothing.

        Of a program that refuses values, the half of what it takes, which it mostly takes too; else
        what is nearest to that.
        """
        refusals = len(self._refusals())
        if refusals > _MOST_REFUSALS:
            return None
        line = self._by_line(self._aim.sure_bytes) if self._aim and not refusals else None
        near = [n for n in (line, (line or 0) + 1) if n is not None and low < n < high]
        meant = near[0] if near and len(self._tried) % 2 else (low + high) // 2
        around = (n for far in range(high - low) for n in (meant - far, meant + far))
        return next((n for n in around if low < n < high and n not in self._tried), None)


def _bounds(tried: dict[int, Word], meant: tuple[str, ...]) -> tuple[int, int | None]:
    """Return the largest count of which a word is meant, below all that are not, and of those."""
    high = min((count for count, word in tried.items() if word not in meant), default=None)
    below = [n for n, word in tried.items() if word in meant and (high is None or n < high)]
    return max(below, default=0), high
