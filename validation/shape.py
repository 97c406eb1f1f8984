"""The shape of ``src/``: lines, the longest files and functions, private helpers used once.

``python validation/shape.py [--helpers]``

A line of code is one that holds more than a comment or a docstring. A function's lines are those
from its ``def`` to its end, its docstring apart. A private helper is used once where its name,
which begins with an underscore, stands in one place of the whole package beside its definition.
Args and Returns stand on the public API only: what the pages of ``docs/`` tell of or import, and
modules that other programs call.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src" / "brimful"
DOCS = SOURCE.parents[1] / "docs"
CALLED = (
    "brimful.api", "brimful.doctor.hf_trainer", "brimful.errors", "brimful.pretend.pytest_plugin",
    "brimful.units", "brimful.watch",
)  # fmt: skip
"""Modules whose public names others call."""
_TOLD = re.compile(r"^::: (brimful[\w.]*)$", re.MULTILINE)
_IMPORTED = re.compile(r"from (brimful[\w.]*) import ([\w, ]+)")
_SECTION = re.compile(r"^(Args|Returns|Yields|Raises):$", re.MULTILINE)
Function = ast.FunctionDef | ast.AsyncFunctionDef


class File(NamedTuple):
    """A file of the package, read."""

    path: Path
    text: str

    @property
    def tree(self) -> ast.Module:
        """It, parsed each time: trees of all files together are a million objects."""
        return ast.parse(self.text)

    @property
    def num_lines(self) -> int:
        """Lines of all kinds."""
        return len(self.text.splitlines())


class Long(NamedTuple):
    """A file, or a function in one, and its lines."""

    num_lines: int
    where: str


def main(argv: Sequence[str]) -> int:
    """Print the figures; with ``--helpers`` where the helpers are."""
    files = read()
    helpers, every = used_once(files), function_lines(files)
    file, function = max(file_lines(files)), max(every)
    print(f"modules beside packages  {len(loose())}")
    print(f"files                    {len(files)}, {file.num_lines} lines at most: {file.where}")
    print(f"lines                    {sum(file.num_lines for file in files)}")
    print(f"of code                  {sum(map(code_lines, files))}")
    print(
        f"functions                {len(every)}, the longest {function.where}: {function.num_lines}"
    )
    print(f"helpers used once        {len(helpers)} ({len(helpers) / len(every):.1%})")
    if "--helpers" in argv:
        print(*(f"{each.num_lines:4d} {each.where}" for each in sorted(helpers)), sep="\n")
    return 0


def read(folder: Path = SOURCE) -> tuple[File, ...]:
    """Read every module of a package."""
    return tuple(File(path, path.read_text("utf-8")) for path in sorted(folder.rglob("*.py")))


def loose(folder: Path = SOURCE) -> list[str]:
    """List the modules that stand beside the packages."""
    return sorted(path.name for path in folder.glob("*.py"))


def functions(file: File) -> list[Function]:
    """List the functions of a file, inner ones and methods too."""
    return [node for node in ast.walk(file.tree) if isinstance(node, Function)]


def file_lines(files: Sequence[File]) -> list[Long]:
    """Count the lines of files."""
    return [Long(file.num_lines, file.path.relative_to(SOURCE).as_posix()) for file in files]


def function_lines(files: Sequence[File]) -> list[Long]:
    """Count the lines of functions, without their docstrings."""
    return [_long(file, function) for file in files for function in functions(file)]


def used_once(files: Sequence[File]) -> list[Long]:
    """List the private helpers whose name stands in one place beside their definition."""
    uses = Counter(name for file in files for name in _names(file.tree))
    return [
        _long(file, function)
        for file in files
        for function in functions(file)
        if function.name.startswith("_")
        and not function.name.startswith("__")
        and uses[function.name] == 1
    ]


def public_names(docs: Path = DOCS) -> set[str]:
    """Name what Python code of others may call, by its whole path."""
    pages = "\n".join(page.read_text("utf-8") for page in sorted(docs.rglob("*.md")))
    imported = _IMPORTED.findall(pages)
    typed = {f"{home}.{name.strip()}" for home, names in imported for name in names.split(",")}
    return {*CALLED, *_TOLD.findall(pages), *typed}


def inner_sections(files: Sequence[File], public: set[str]) -> list[str]:
    """List the functions off the public API whose docstrings have sections of their own."""
    return [
        place
        for file in files
        for place, function in _paths(file.tree, _module(file))
        if _SECTION.search(ast.get_docstring(function) or "") and not _is_public(place, public)
    ]


def _module(file: File) -> str:
    parts = file.path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def _paths(node: ast.AST, path: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef):
            place = f"{path}.{child.name}"
            if isinstance(child, Function):
                yield place, child
            yield from _paths(child, place)
        else:
            yield from _paths(child, path)


def _is_public(place: str, public: set[str]) -> bool:
    parts = place.split(".")
    if any(part.startswith("_") and not part.startswith("__") for part in parts):
        return False
    return any(".".join(parts[:depth]) in public for depth in range(2, len(parts) + 1))


def code_lines(file: File) -> int:
    """Count the lines of a file that hold code."""
    prose = {
        number
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for number in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    lines = enumerate(file.text.splitlines(), start=1)
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in prose
        for number, line in lines
    )


def _long(file: File, function: Function) -> Long:
    first = function.body[0]
    is_prose = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    prose = (first.end_lineno or 0) - first.lineno + 1 if is_prose else 0
    num_lines = (function.end_lineno or 0) - function.lineno + 1 - prose
    place = file.path.relative_to(SOURCE).as_posix()
    return Long(num_lines, f"{place}:{function.lineno} {function.name}")


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
