"""Which line of a script's own begins a phase: the innermost that is no library's."""

import inspect
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

_PACKAGES = ("site-packages", "dist-packages")
_REFERENCES_OF_OURS = 3
"""To a copy that only its frame has: the frame's, the reader's variable, and the count's own."""
_OURS = str(Path(__file__).parents[1])
"""This package."""
_STANDARD = (sysconfig.get_path("stdlib"), "<frozen")


class ScriptLine(NamedTuple):
    """Where a script calls what runs.

    Attributes:
        line: ``file:number``; empty: nothing but libraries runs.
        function: In which function; empty: in none.
        callers: The script's lines that called it, the innermost first.
    """

    line: str
    function: str
    callers: tuple[str, ...] = ()

    @property
    def way(self) -> tuple[str, ...]:
        """Its lines from the outermost on."""
        return (*reversed(self.callers), self.line)


def script_line() -> ScriptLine:
    """Return the innermost line that runs and is no library's, and those that called it."""
    frame: Any = sys._getframe(1)  # noqa: SLF001
    lines, function = list[str](), ""
    while frame is not None:
        code = frame.f_code
        if not is_library(code.co_filename):
            name = code.co_name
            if not lines and not name.startswith("<"):
                function = name
            lines.append(f"{code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
    return ScriptLine(lines[0], function, tuple(lines[1:])) if lines else ScriptLine("", "")


def variable_of(value: object) -> str:
    """Return the script's name of what runs, of the innermost frame that has one; empty: none."""
    frame: Any = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            for names in (_locals_of(frame), {**frame.f_globals}):
                for name, each in names.items():
                    if each is value:
                        return str(name)
                    if not hasattr(each, "__dict__") or isinstance(each, (type, ModuleType)):
                        continue
                    for inner, held in [*vars(each).items()]:
                        if held is value:
                            return f"{name}.{inner}"
        frame = frame.f_back
    return ""


def _locals_of(frame: Any) -> dict[str, Any]:
    """Return a function's variables, and let go of the copy that Python 3.11 keeps of them.

    It would hold what the script no longer does; but a script that keeps ``locals()`` has it too.
    """
    found = frame.f_locals
    names = {**found}
    is_ours = frame.f_code.co_flags & inspect.CO_OPTIMIZED and isinstance(found, dict)
    if is_ours and sys.getrefcount(found) <= _REFERENCES_OF_OURS:
        found.clear()
    return names


def place_of(phase: int, phases: Sequence[str], places: Sequence[ScriptLine]) -> ScriptLine | None:
    """Return the script's line that began a phase; None: not known, or it is loading.

    ``phases``: all of them, the first of which is loading.
    """
    return places[phase - 1] if phase and len(places) + 1 == len(phases) else None


def own_lines_of(
    chosen: Iterable[int],
    others: Iterable[int],
    phases: Sequence[str],
    places: Sequence[ScriptLine],
) -> list[str]:
    """Return the outermost of the script's lines by which it comes to each phase, and to no other.

    Where it comes there as to the ``others``, it is the innermost; empty: not known.
    """
    if len(places) + 1 != len(phases):
        return ["" for _ in chosen]
    ways = {
        way[:num] for other in others if (way := places[other - 1].way) for num in _lengths(way)
    }
    found = []
    for way in (places[phase - 1].way for phase in chosen):
        own = (way[:num] for num in _lengths(way) if way[:num] not in ways)
        found.append(next(own, way)[-1])
    return found


def _lengths(way: Sequence[str]) -> range:
    return range(1, len(way) + 1)


def is_library(file: str) -> bool:
    """Whether a file is nobody's who runs the script: a package's, Python's or ours."""
    return file.startswith((_OURS, *_STANDARD)) or any(each in file for each in _PACKAGES)
