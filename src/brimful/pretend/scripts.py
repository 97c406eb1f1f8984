"""Running somebody's script as Python would, unmodified: ``python script.py`` or ``python -m``.

A notebook is run as the script that its cells of code are; lines for IPython or a shell, and cells
in another language, do nothing.
"""

import ast
import contextlib
import importlib.util
import json
import linecache
import re
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from brimful.errors import InputError
from brimful.pretend.launchers import LAUNCHERS, MODULE_FLAG, MODULES, Launched
from brimful.pretend.script_arguments import constants_in

NOTEBOOK = ".ipynb"
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")
_LAUNCHERS = frozenset({"mpirun", "srun", "uv", "poetry", "bash", "sh"})
_OF_A_SHELL = ("%", "!")
"""Beginnings of lines of a notebook that are no Python."""
_ABOUT_PYTHON = frozenset({"%%time", "%%timeit", "%%capture", "%%prun"})
"""First words of cells whose other lines are Python."""


_FOREIGN = frozenset({
    "cntk", "chainer", "flax", "haiku", "jax", "jaxlib", "keras", "mindspore", "mlx", "mxnet",
    "oneflow", "optax", "orbax", "paddle", "tensorflow", "tinygrad",
})  # fmt: skip
"""Packages that allocate on a GPU by themselves, without PyTorch."""


_cells: dict[str, list[int]] = {}
"""How many lines each cell has of notebooks that were run, by the scripts made of them."""


def foreign_framework(error: BaseException) -> str:
    """Name the framework of a program that is written in another one; empty: it is PyTorch."""
    missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    package = missing.partition(".")[0]
    return package if package in _FOREIGN else ""


def launched(program: Sequence[str], *, rank: int = 0) -> Launched:
    """Take the interpreter off a command line, and a launcher with its own flags.

    ``program``: as it would be typed to be run for real. Raises InputError: the launcher's flags
    cannot be read, or do not say how many processes it starts.
    """
    own = list(program)
    if own and _PYTHON.fullmatch(Path(own[0]).name):
        own = own[1:]
        while own and own[0] in {"-u", "-O", "-B"}:
            own = own[1:]
    if own[:1] == [MODULE_FLAG] and len(own) > 1 and own[1] in MODULES:
        name = MODULES[own[1]]
        own = [name, *(["launch"] * (name == "accelerate")), *own[2:]]
    if not own or own[0] not in LAUNCHERS or Path(own[0]).is_file():
        return Launched(own)
    return LAUNCHERS[own[0]](own[1:], rank=rank)


def check_program(program: Sequence[str]) -> None:
    """Refuse what is no program, before anything heavy is imported for it.

    ``program``: ``script.py`` or ``-m module``, then the program's own arguments.
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
    elif program[0] in _LAUNCHERS and not Path(program[0]).is_file():
        raise InputError(
            f"{program[0]} starts programs and is none; name the script itself, with --world-size "
            f"N before -- for N processes"
        )
    elif not Path(program[0]).is_file():
        raise InputError(f"there is no script {program[0]}; {usage}")
    elif Path(program[0]).suffix == NOTEBOOK:
        script_of(Path(program[0]))


def script_of(notebook: Path) -> str:
    """Return a notebook's cells of code, one after the other.

    Raises InputError: its cells cannot be read.
    """
    return "".join(f"{line}\n" for line in chain.from_iterable(_cells_of(notebook)))


def written_in(script: str) -> list[tuple[str, int]]:
    """List the names that a script or a notebook writes whole numbers behind; none of a module."""
    path = Path(script)
    try:
        is_notebook = path.suffix == NOTEBOOK
        text = script_of(path) if is_notebook else path.read_text("utf-8")
        return list(constants_in(ast.parse(text)))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []  # what fails when it is run


def _cells_of(notebook: Path) -> list[list[str]]:
    """Return the lines of each cell of code."""
    try:
        cells = json.loads(notebook.read_text("utf-8"))["cells"]
        sources = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{notebook} is no notebook: its cells cannot be read") from error
    return [list(_python_of(source)) for source in sources]


def cell_of(file: str, line: int) -> tuple[str, int] | None:
    """Return of which cell of a notebook a line is, in words, and its number there; None: of none.

    ``file``: that was run, which a notebook was made into.
    """
    before = 0
    for number, num_lines in enumerate(_cells.get(file, ()), 1):
        if line <= before + num_lines:
            return f"{Path(file).parent.name}, code cell {number}", line - before
        before += num_lines
    return None


def _python_of(source: str) -> Iterator[str]:
    """Yield the lines of a cell; what is no Python does nothing where it stands."""
    first = source.split(maxsplit=1)[:1]
    is_python = not first or not first[0].startswith("%%") or first[0] in _ABOUT_PYTHON
    for line in source.splitlines() if is_python else ():
        is_for_others = line.lstrip().startswith(_OF_A_SHELL)
        yield f"{line[: len(line) - len(line.lstrip())]}pass" if is_for_others else line


def _check_module(name: str) -> None:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise InputError(f"there is no module {name}; name one that python -m {name} would run")


def run_program(
    program: Sequence[str], names_for: Callable[[str], dict[str, object]] = lambda _: {}
) -> None:
    """Run a program as the main module, with its own ``sys.argv`` and ``sys.path``.

    ``program``: ``script.py`` or ``-m module``, then the program's own arguments. ``names_for``:
    says by a script's text which names it is given. Raises SystemExit: the program ended so. Raises
    Exception: whatever the program raises.
    """
    argv = sys.argv
    try:
        if program[0] == MODULE_FLAG:
            sys.argv = list(program[1:])
            with _importing_from(Path.cwd()):
                runpy.run_module(program[1], run_name="__main__", alter_sys=True)
            return
        sys.argv = list(program)
        script = Path(program[0])
        with _importing_from(script.resolve().parent), _as_script(script) as path:
            names = names_for(path.read_bytes().decode("utf-8", "replace"))
            runpy.run_path(str(path), names, run_name="__main__")
    finally:
        sys.argv = argv


@contextlib.contextmanager
def _as_script(path: Path) -> Iterator[Path]:
    """Yield a script that Python reads: itself, or what a notebook is as one."""
    if path.suffix != NOTEBOOK:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, path.name, "cells.py")
        script.parent.mkdir()
        text = script_of(path)
        script.write_text(text, "utf-8")
        _cells[str(script)] = [len(lines) for lines in _cells_of(path)]
        # Errors show lines of a file that is gone by then.
        linecache.cache[str(script)] = (
            len(text),
            None,
            text.splitlines(keepends=True),
            str(script),
        )
        yield script


@contextlib.contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """Look for modules in ``folder`` first, as Python does for the main module."""
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = before


def short_line(line: str, *, num_parts: int = 2) -> str:
    """Leave the last parts of a source line's path: ``llama/model.py:7``; or a notebook's cell."""
    file, _, number = line.rpartition(":")
    if number.isdecimal() and (cell := cell_of(file, int(number))) is not None:
        return f"{cell[0]}, line {cell[1]}"
    return "/".join(line.replace("\\", "/").split("/")[-num_parts:])
