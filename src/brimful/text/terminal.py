"""Writing to a terminal: every line and every table of ours goes through here.

What people gave stands in both, and none of it is an escape sequence, a line of its own making or
Rich's markup.
"""

import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import IO, TYPE_CHECKING, Any

from brimful.text.escaping import visible

if TYPE_CHECKING:
    from rich.console import Console


_OURS = "brimful: "
"""What a refusal or a note begins with."""
_INDENT = " " * len(_OURS)
_silenced: ContextVar[bool] = ContextVar("silenced", default=False)


def say(
    text: str = "", *, end: str = "\n", file: IO[str] | None = None, flush: bool = False
) -> None:
    """Print text, its line feeds kept and everything else that does not show spelled.

    ``file``: where to; None: standard output. ``flush``: whether it must be seen at once.
    """
    if file is None or file is sys.stdout:
        _say_notes()
    elif file is sys.stderr and is_silenced():
        return
    shown = visible(text)
    if file is not None and file is sys.stderr and file.isatty():
        shown = folded(shown, shutil.get_terminal_size().columns)
    print(shown, end=end, file=file, flush=flush)


@contextmanager
def silenced() -> Iterator[None]:
    """Say nothing on stderr meanwhile: an answer is being printed, and nothing belongs into it."""
    token = _silenced.set(True)
    try:
        yield
    finally:
        _silenced.reset(token)


def is_silenced() -> bool:
    """Whether nothing is said on stderr."""
    return _silenced.get()


def folded(text: str, columns: int) -> str:
    """Fold lines that are wider than a terminal between words; where nothing reads them.

    ``text``: lines for people, as refusals, notes and progress are.
    """
    return "\n".join(line for each in text.split("\n") for line in _fold(each, columns))


def _fold(line: str, columns: int) -> list[str]:
    if len(line) <= columns:
        return [line]
    indent = _INDENT if line.startswith(_OURS) else ""
    return textwrap.wrap(
        line,
        columns,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )


_notes: list[str] = []
_headings: list[str] = []
"""Notes that belong to the answer, so that it is not read without them."""
_said: set[str] = set()
"""Notes of this command that were said: each is said once."""


def note(text: str, *, heads_answer: bool = False) -> None:
    """Say a line on stderr before the first of the answer; where none follows, not at all.

    ``text``: what was decided for the user. A refusal that comes instead is one sentence.
    ``heads_answer``: whether it is said where the answer is, on standard output.
    """
    if text not in _said and text not in _notes:
        _notes.append(text)
        if heads_answer:
            _headings.append(text)


def noted() -> tuple[str, ...]:
    """Return what was noted and not said yet."""
    return tuple(_notes)


def num_heading_lines() -> int:
    """Count the lines that are said above the answer, on standard output, behind the first note."""
    return sum(text.count("\n") + 1 for text in _headings[1:])


def forget_notes(*, of_a_program: bool = False) -> None:
    """Drop what was noted: a command begins, or there is no answer.

    ``of_a_program``: whether a call of a program ends; it is told once what several calls note.
    """
    _notes.clear()
    _headings.clear()
    if not of_a_program:
        _said.clear()


def _say_notes() -> None:
    noted, headings = _notes.copy(), _headings.copy()
    _notes.clear()
    _headings.clear()
    _said.update(noted)
    for text in noted:
        say(text, file=sys.stdout if text in headings else sys.stderr, flush=text in headings)


def console(**given: Any) -> "Console":
    """Make a console that reads no markup in text and lets no text steer the terminal.

    ``given``: what ``rich.console.Console`` takes.
    """
    made: Console = _console_class()(markup=False, emoji=False, highlight=False, **given)
    return made


@cache
def _console_class() -> Any:
    """Define the class; rich is imported here, where something is printed."""
    from rich.console import Console
    from rich.segment import Segment

    class PlainTextConsole(Console):
        """A console whose text is data; its own styles and movements are not text."""

        # Overridden, because it is the one way by which prints, tables and live displays go.
        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                if segment.control:
                    yield segment
                else:
                    yield Segment(visible(segment.text), segment.style)

    return PlainTextConsole
