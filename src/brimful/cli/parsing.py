"""What argparse is given: help and errors of our own, and one type for each kind of value."""

import argparse
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from brimful.cli import misspelt
from brimful.cli.other_flags import taken_for_ours
from brimful.errors import InputError, unknown_name
from brimful.text.terminal import note, noted
from brimful.units import (
    BYTES_PER_TOKEN,
    format_count,
    parse_bytes,
    parse_count,
    tokens_of_bytes,
)

_Size = TypeVar("_Size", bound=float)
HELP_WIDTH = 100
_FLAG_WIDTH = 32


class HelpText(argparse.HelpFormatter):
    """argparse's help, at most 100 columns wide, with the metavar of a flag written once."""

    def __init__(self, prog: str) -> None:
        """Fit the terminal."""
        width = min(HELP_WIDTH, shutil.get_terminal_size((HELP_WIDTH, 24)).columns)
        super().__init__(prog, max_help_position=_FLAG_WIDTH, width=width)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        # As Python 3.13 does, so that help and docs are the same on every version.
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        metavar = self._format_args(action, action.dest.upper())
        return f"{', '.join(action.option_strings)} {metavar}"


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ours: one sentence, no usage dump."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print."""
        refused = sys.exception()
        if isinstance(refused, argparse.ArgumentError):
            # argparse catches every ValueError of a flag's type and drops what it said.
            cause = refused.__context__
            if isinstance(cause, InputError):
                raise cause
        raise InputError(f"{message}; see {self.prog} --help")

    def parse_args(  # type: ignore[override]  # argparse's are overloads
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse, with misspelt flags and those of other programs taken for ours."""
        given = list(sys.argv[1:] if args is None else args)
        known = self._option_string_actions
        notes = list[str]()
        if not any(action.nargs == argparse.REMAINDER for action in self._actions):
            given, notes = misspelt.respelt(given, known)
        taken = taken_for_ours(given, known)
        for remark in (*notes, *taken.notes):
            note_once(remark)
        found, left = self.parse_known_args(taken.arguments, namespace)
        if left:
            words = misspelt.unknown_words(taken.arguments, left, known, self.prog)
            told = "; ".join([*words, *notes, f"see {self.prog} --help"])
            raise InputError(told.replace("?; ", "? "))
        return found


def choice(
    what: str,
    allowed: tuple[str, ...],
    others: Mapping[str, str] | None = None,
    *,
    remark: Callable[[str], str] | None = None,
) -> Callable[[str], str]:
    """Return an argparse type that takes one of ``allowed`` and knows the nearest otherwise.

    ``remark``: what the note of such a word adds about it.
    """

    def parse(text: str) -> str:
        if text in allowed:
            return text
        taken = {**{name: name for name in allowed}, **(others or {})}
        spelt = {plain(name): name for name in reversed(taken)}
        found = taken.get(spelt.get(plain(text), text))
        if found is None:
            raise unknown_name(what, text, allowed)
        if found in allowed:
            note_once(f"--{what} {found} is taken for {text!r}{remark(text) if remark else ''}")
        return found

    return parse


def plain(word: str) -> str:
    """Return a word as it is compared: ``AdamW_8bit`` is adamw-8bit."""
    return word.strip().lower().replace("_", "-").replace(" ", "-")


_MOST = 10**9
"""No number of times is larger."""
_FRACTION = re.compile(r"\d*\.\d*[1-9]\d*")


def whole(
    what: str, *, least: int = 1, read: Callable[[str], int] = parse_count
) -> Callable[[str], int]:
    """Return an argparse type for counts such as ``4096`` or ``4k``, of ``least`` or more."""

    def parse(text: str) -> int:
        try:
            count = read(text)
        except InputError as error:
            raise InputError(f"{what} {error}") from error
        if _FRACTION.fullmatch(text.strip()):
            raise InputError(f"{what} {text!r} is not a whole number; write it like 4096 or 4k")
        if count < least:
            raise InputError(f"{what} {text} is too few; give {least} or more")
        return count

    return parse


def of_run(what: str) -> Callable[[str], int]:
    """Return an argparse type for tokens of a run, for which the size of their text may stand."""
    count = whole(what)

    def parse(text: str) -> int:
        tokens = tokens_of_bytes(text)
        if not tokens:
            return count(text)
        note_once(
            f"{what} {format_count(tokens)} is taken for {text!r} of text: {BYTES_PER_TOKEN} bytes "
            f"make a token in English, about, and fewer in other languages"
        )
        return tokens

    return parse


def listed(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return an argparse type for one value, or for a list of them by comma."""

    def parse(text: str) -> Any:
        values = list(dict.fromkeys(kind(part.strip()) for part in text.split(",")))
        return values if len(values) > 1 else values[0]

    return parse


def size(
    what: str,
    read: Callable[[str], _Size] = parse_bytes,  # type: ignore[assignment]  # its default
) -> Callable[[str], _Size]:
    """Return an argparse type for sizes such as ``1.5GiB``."""

    def parse(text: str) -> _Size:
        try:
            return read(text)
        except InputError as error:
            raise InputError(f"{what} {error}") from error

    return parse


def number(what: str) -> Callable[[str], float]:
    """Return an argparse type for real numbers."""

    def parse(text: str) -> float:
        try:
            return float(text)
        except ValueError as error:
            raise InputError(f"{what} {text!r} is not a number; write it like 3e-4") from error

    return parse


def above_zero(what: str) -> Callable[[str], float]:
    """Return an argparse type for real numbers above 0 that people can mean."""
    read = number(what)

    def parse(text: str) -> float:
        found = read(text)
        if not 0 < found <= _MOST:
            raise InputError(f"{what} {text} is not above 0 and at most {_MOST:,}; write it like 3")
        return found

    return parse


def path(what: str, *, suffixes: tuple[str, ...] = ()) -> Callable[[str], Path]:
    """Return an argparse type for paths, which end in one of ``suffixes`` where there are any."""

    def parse(text: str) -> Path:
        if not text.strip():
            raise InputError(f"{what} {text!r} is no path; give one")
        if suffixes and Path(text).suffix not in suffixes:
            raise InputError(f"{what} {text} must end in {' or '.join(suffixes)}; add it")
        return Path(text)

    return parse


def note_once(text: str) -> None:
    """Say on stderr what was taken for something else, once in a process."""
    if f"brimful: {text}" not in noted():
        note(f"brimful: {text}")
