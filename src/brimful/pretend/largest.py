"""``brimful pretend --largest NAME``: the largest value of a script's own argument that fits.

The script is run again with few other values: what it would ask for with the others is computed
from these (``size_law.py``) and replayed, and the value that is told is run. Where its runs are not
of one kind, it is run as often as it takes. What it prints then is dropped.
"""

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from brimful.errors import InputError
from brimful.values.plan import Word

if TYPE_CHECKING:
    from brimful.pretend.recording import Recording
    from brimful.pretend.size_law import Law

MOST_RUNS, MOST_MORE_RUNS = 16, 8
"""For the largest that may fit, and for the largest that surely does."""
_DECLARING = frozenset({"add_argument", "option"})
"""Methods of argparse and of click that declare an argument."""
FINEST = 32
"""Parts of the value that was given, to one of which the largest is found."""
_MOST_LAWS = 6
"""Runs after which a script that each run says something else of is run by halves."""
_FARTHEST = 16
"""How often the largest value yet may be taken for a second run."""
_OF_BATCHES = re.compile(
    r"batch|micro|accum|rows|seq|len|token|context|clip|frame|image|crop|sample|group|prompt|\bbs\b"
)
"""Names of arguments with which states do not grow."""


class Tried(NamedTuple):
    """What is known of one value.

    Attributes:
        word: Whether it fits.
        num_bytes: What the allocator would hold that is never refused.
        recording: What was recorded, where it was run.
    """

    word: Word
    num_bytes: int = 0
    recording: "Recording | None" = None


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


Run = Callable[[Sequence[str]], Tried | None]
"""Runs a program with its arguments; None where the program itself refuses them."""


class Argument(NamedTuple):
    """A number among a script's arguments.

    Attributes:
        flag: As it is typed.
        value: What was given.
        place: Of the value among the arguments.
        is_joined: Whether flag and value are one word, with an equals sign.
    """

    flag: str
    value: int
    place: int
    is_joined: bool


class Largest(NamedTuple):
    """What was found.

    Attributes:
        flag: The argument.
        value: The largest value that fits; None: not even the smallest that was tried.
        beyond: The smallest that was seen not to fit; None: all that were tried do.
        num_runs: How often the script was run for it.
        sure: The largest that fits with room to spare; None: the smallest that was tried does not.
        num_replays: Of how many other values what they would ask for was replayed.
        is_of_states: Whether none can fit, as what every one of them needs has no room.
        is_whole: Whether all was tried; else it was interrupted.
    """

    flag: str
    value: int | None
    beyond: int | None
    num_runs: int
    sure: int | None = None
    num_replays: int = 0
    is_of_states: bool = False
    is_whole: bool = True


def with_default(program: Sequence[str], name: str) -> list[str]:
    """Return a program with an argument as its own text says that it is where nobody gives it.

    Args:
        program: The script and its arguments.
        name: Of the argument, with dashes in front or without.

    Returns:
        The program as it is where it is given the argument, or no default of it can be seen.
    """
    flag = _flag(name)
    given = {word.partition("=")[0] for word in program[1:]}
    default = None if flag in given else _default_of(program, flag)
    return list(program) if default is None else [*program, default[0], str(default[1])]


def _default_of(program: Sequence[str], flag: str) -> tuple[str, int] | None:
    """Find what a script's text says of a flag: its spelling, and a number."""
    same = ((name, value) for name, value in declared(program) if _plain(name) == _plain(flag))
    return next(same, None)


def declared(program: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield the flags whose default is a whole number in a script's text, each as it is spelled.

    Args:
        program: The script, and its arguments.
    """
    try:
        text = Path(program[0]).read_text("utf-8")
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    except (OSError, SyntaxError, ValueError):
        return  # a module, a notebook, or what fails when it is run
    for call in calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in _DECLARING:
            continue
        names = [each.value for each in call.args if isinstance(each, ast.Constant)]
        spelled = [each for each in names if isinstance(each, str) and each.startswith("--")]
        for keyword in call.keywords:
            value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
            if keyword.arg == "default" and type(value) is int:
                yield from ((name, value) for name in spelled)


def _flag(name: str) -> str:
    return name if name.startswith("-") else f"--{name}"


def _plain(flag: str) -> str:
    return flag.replace("_", "-")


def argument_of(program: Sequence[str], name: str) -> Argument:
    """Find an argument of a script by its name.

    Args:
        program: The script and its arguments.
        name: With dashes in front or without.

    Raises:
        InputError: The script was given no such argument, or no whole number above 0 for it.
    """
    flag = _flag(name)
    for place, word in enumerate(program[1:], 1):
        key, is_joined, value = word.partition("=")
        if _plain(key) != _plain(flag):
            continue
        at = place if is_joined else place + 1
        text = value if is_joined else (program[at] if at < len(program) else "")
        if not text.isdecimal() or int(text) < 1:
            raise InputError(f"--largest {name}: {flag} is given {text!r}, which is no count")
        return Argument(key, int(text), at, bool(is_joined))
    raise InputError(
        f"--largest {name}: the script is not given {flag}, and its text says no default of it; "
        f"put {flag} N behind {program[0]}, with a number to begin from such as {flag} 1"
    )


def with_value(program: Sequence[str], argument: Argument, value: int) -> list[str]:
    """Return a program with another value of an argument."""
    changed = list(program)
    changed[argument.place] = f"{argument.flag}={value}" if argument.is_joined else str(value)
    return changed


def value_in(program: Sequence[str], argument: Argument) -> int:
    """Return the value of an argument in a program; see ``with_value``."""
    return int(program[argument.place].rpartition("=")[2])


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

    Args:
        program: As it was given.
        argument: Which number.
        run: Runs it.
        first: What is known of it as it was given.
        aim: What values are measured by; None: runs alone say.

    Returns:
        What was found; what was found until then where it was interrupted.
    """
    is_full = aim is not None and first.word == "no" and aim.state_bytes > aim.capacity_bytes
    if is_full and _OF_BATCHES.search(argument.flag.lower()):
        return Largest(argument.flag, None, argument.value, 0, is_of_states=True)
    search = _Search(program, argument, run, first)
    try:
        if aim is None or (found := search.by_law(aim)) is None:
            found = search.by_halves()
    except KeyboardInterrupt:
        return search.found()._replace(is_whole=False)
    return found


class _Search:
    """What was tried, by how many steps each value is; see ``step_of``."""

    def __init__(self, program: Sequence[str], argument: Argument, run: Run, first: Tried) -> None:
        self._program, self._argument, self._run = program, argument, run
        self._step = step_of(argument.value)
        self._given = argument.value // self._step
        self._tried: dict[int, Tried] = {0: Tried("fits"), self._given: first}

    def _probe(self, count: int) -> Tried:
        if count not in self._tried:
            changed = with_value(self._program, self._argument, count * self._step)
            self._tried[count] = self._run(changed) or Tried("no")
        return self._tried[count]

    def _words(self) -> dict[int, Word]:
        return {count: each.word for count, each in self._tried.items()}

    def found(self, foretold: dict[int, Word] | None = None) -> Largest:
        """Return what the runs say, and what was foretold of other values."""
        words = {**(foretold or {}), **self._words()}
        sure, _ = _bounds(words, ("fits",))
        most, beyond = _bounds(words, ("fits", "tight"))
        return Largest(
            self._argument.flag,
            most * self._step or None,
            None if beyond is None else beyond * self._step,
            len(self._tried) - 2,
            sure * self._step or None,
            len(words) - len(self._tried),
        )

    # -- by what is computed from few runs --

    def by_law(self, aim: Aim) -> Largest | None:
        """Compute what other values ask for, and run what is told; None: it cannot be computed."""
        self._probe(self._second(aim))
        is_checked = False
        for _ in range(_MOST_LAWS):
            guess = self._by_line(aim.sure_bytes)
            law = self._law(guess or self._given)
            if law is None:
                if guess is None or guess in self._tried:
                    return None
                self._probe(guess)
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
            while high is not None and high - low > 1 and len(self._tried) <= most + 1:
                self._probe((low + high) // 2)
                low, high = _bounds(self._words(), meant)
        return self.found()


def _bounds(tried: dict[int, Word], meant: tuple[str, ...]) -> tuple[int, int | None]:
    """Return the largest count of which a word is meant, below all that are not, and of those."""
    high = min((count for count, word in tried.items() if word not in meant), default=None)
    below = [n for n, word in tried.items() if word in meant and (high is None or n < high)]
    return max(below, default=0), high
