"""Which line of a script's own begins a phase: the innermost that is no library's."""

import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

_PACKAGES = ("site-packages", "dist-packages")
_OURS = str(Path(__file__).parents[1])
"""This package."""
_STANDARD = (sysconfig.get_path("stdlib"), "<frozen")


class ScriptLine(NamedTuple):
    """Where a script calls what runs.

    Attributes:
        line: ``file:number``; empty: nothing but libraries runs.
        function: In which function; empty: in none.
    """

    line: str
    function: str


def script_line() -> ScriptLine:
    """Return the innermost line that runs and is no library's."""
    frame: Any = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        code = frame.f_code
        if not is_library(code.co_filename):
            name = code.co_name
            return ScriptLine(
                f"{code.co_filename}:{frame.f_lineno}", "" if name.startswith("<") else name
            )
        frame = frame.f_back
    return ScriptLine("", "")


def place_of(phase: int, phases: Sequence[str], places: Sequence[ScriptLine]) -> ScriptLine | None:
    """Return the script's line that began a phase; None: not known, or it is loading.

    ``phases``: all of them, the first of which is loading.
    """
    return places[phase - 1] if phase and len(places) + 1 == len(phases) else None


def is_library(file: str) -> bool:
    """Whether a file is nobody's who runs the script: a package's, Python's or ours."""
    return file.startswith((_OURS, *_STANDARD)) or any(each in file for each in _PACKAGES)
