"""``brimful pretend --largest NAME``: the largest value of a script's own argument that fits.

The script is run again with other values, as often as it takes; what it prints then is dropped.
"""

import ast
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from brimful.errors import InputError
from brimful.values.plan import Word

MOST_RUNS, MOST_MORE_RUNS = 16, 8
"""For the largest that may fit, and for the largest that surely does."""
_DECLARING = frozenset({"add_argument", "option"})
"""Methods of argparse and of click that declare an argument."""
FINEST = 32
"""Parts of the value that was given, to one of which the largest is found."""
Words = Callable[[Sequence[str]], Word | None]
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
    """

    flag: str
    value: int | None
    beyond: int | None
    num_runs: int
    sure: int | None = None


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
    program: Sequence[str], argument: Argument, words: Words, *, first: Word
) -> Largest:
    """Find the largest value with which a program fits, where more of it takes more memory.

    Args:
        program: As it was given.
        argument: Which number.
        words: Runs it.
        first: What is said of it as it was given.
    """
    step = step_of(argument.value)
    tried: dict[int, Word] = {0: "fits", argument.value // step: first}

    def probe(count: int) -> Word:
        tried[count] = words(with_value(program, argument, count * step)) or "no"
        return tried[count]

    low, high = _bounds(tried, ("fits", "tight"))
    while high is None and len(tried) <= MOST_RUNS + 1:
        probe(2 * low)
        low, high = _bounds(tried, ("fits", "tight"))
    for meant, most in ((("fits", "tight"), MOST_RUNS), (("fits",), MOST_RUNS + MOST_MORE_RUNS)):
        low, high = _bounds(tried, meant)
        while high is not None and high - low > 1 and len(tried) <= most + 1:
            probe((low + high) // 2)
            low, high = _bounds(tried, meant)
    sure, _ = _bounds(tried, ("fits",))
    most_fitting, beyond = _bounds(tried, ("fits", "tight"))
    return Largest(
        argument.flag,
        most_fitting * step or None,
        None if beyond is None else beyond * step,
        len(tried) - 2,
        sure * step or None,
    )


def _bounds(tried: dict[int, Word], meant: tuple[str, ...]) -> tuple[int, int | None]:
    """Return the largest count of which a word is meant, below all that are not, and of those."""
    high = min((count for count, word in tried.items() if word not in meant), default=None)
    below = [n for n, word in tried.items() if word in meant and (high is None or n < high)]
    return max(below, default=0), high
