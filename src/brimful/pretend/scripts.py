"""Running somebody's script as Python would, unmodified: ``python script.py`` or ``python -m``."""

import contextlib
import importlib.util
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from brimful.errors import InputError

MODULE_FLAG = "-m"


def check_program(program: Sequence[str]) -> None:
    """Refuse what is no program, before anything heavy is imported for it.

    Args:
        program: ``script.py`` or ``-m module``, then the program's own arguments.

    Raises:
        InputError: Nothing was named, or there is no such file or module.
    """
    usage = "write brimful pretend [flags] -- script.py [arguments]"
    if not program:
        raise InputError(f"no script was named; {usage}")
    if program[0] == MODULE_FLAG:
        if len(program) == 1:
            raise InputError("-m names no module; write brimful pretend [flags] -- -m module")
        with _importing_from(Path.cwd()):
            _check_module(program[1])
    elif program[0].startswith("-"):
        raise InputError(f"{program[0]} is no script; put the script right after --; {usage}")
    elif not Path(program[0]).is_file():
        raise InputError(f"there is no script {program[0]}; {usage}")


def _check_module(name: str) -> None:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise InputError(f"there is no module {name}; name one that python -m {name} would run")


def run_program(program: Sequence[str]) -> None:
    """Run a program as the main module, with its own ``sys.argv`` and ``sys.path``.

    Args:
        program: ``script.py`` or ``-m module``, then the program's own arguments.

    Raises:
        SystemExit: The program ended so.
        Exception: Whatever the program raises.
    """
    argv = sys.argv
    try:
        if program[0] == MODULE_FLAG:
            sys.argv = list(program[1:])
            with _importing_from(Path.cwd()):
                runpy.run_module(program[1], run_name="__main__", alter_sys=True)
            return
        sys.argv = list(program)
        with _importing_from(Path(program[0]).resolve().parent):
            runpy.run_path(program[0], run_name="__main__")
    finally:
        sys.argv = argv


@contextlib.contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """Look for modules in ``folder`` first, as Python does for the main module."""
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = before
