"""In how many files under ``src/`` each optimizer, architecture, exporter and ``ep`` is named.

``python validation/named.py [--files]``

A file names a technique where an identifier, a string or a key of data does, or its own path;
docstrings and comments are prose and do not count, nor do values of data, such as rows of published
runs. Spellings are compared in lower case without ``-`` and ``_``. Of two names of which one begins
with the other the longer one counts. What several optimizers call their rule (AdamW) is no name of
one of them where it is spelled as the rule is.
"""

import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from brimful.export import TARGETS
from brimful.models.architectures import ARCHITECTURES
from brimful.techniques.optimizers import OPTIMIZERS

SOURCE = Path(__file__).parents[1] / "src" / "brimful"
MOST_OF_OPTIMIZER = 3
SHORT = 4
"""Names of so few letters are looked for as whole words of identifiers, others anywhere in them."""
_WORD = re.compile(r"[A-Za-z0-9_-]+")
_PARTS = re.compile(r"[A-Za-z0-9]+")


class Kind(NamedTuple):
    """Techniques of one kind.

    Attributes:
        names: As they are typed.
        rules: Spellings that are no name of one of them.
    """

    names: tuple[str, ...]
    rules: frozenset[str] = frozenset()


def kinds() -> dict[str, Kind]:
    """List what is counted, as the registries have it."""
    words = [rule.words for rule in OPTIMIZERS.values()]
    shared = frozenset(word for word in words if words.count(word) > 1)
    return {
        "optimizer": Kind(tuple(OPTIMIZERS), shared),
        "architecture": Kind(tuple(sorted(ARCHITECTURES))),
        "exporter": Kind(tuple(TARGETS)),
        "degree": Kind(("ep",)),
    }


def main(argv: Sequence[str]) -> int:
    """Print how many files name each; with ``--files`` which."""
    for kind, techniques in kinds().items():
        found = count(SOURCE, techniques)
        for name, files in sorted(found.items(), key=lambda each: -len(each[1])):
            print(f"{kind:12s} {name:22s} {len(files):3d}")
            if "--files" in argv:
                print(*(f"    {path.relative_to(SOURCE)}" for path in files), sep="\n")
    return 0


def count(folder: Path, kind: Kind) -> dict[str, list[Path]]:
    """List the files of a folder that name each technique of a kind; a folder of data is one."""
    found: dict[str, list[Path]] = {name: [] for name in kind.names}
    for path in sorted(folder.rglob("*")):
        if path.suffix in {".py", ".json"}:
            file = path if path.suffix == ".py" else path.parent
            for name in named_in(path, kind):
                found[name] += [file] if file not in found[name] else []
    return found


def named_in(path: Path, kind: Kind) -> set[str]:
    """Return the techniques of a kind that a file names."""
    return {name for spelled in _spelled(path) if (name := _name_of(*spelled, kind))}


@cache
def _spelled(path: Path) -> frozenset[tuple[str, bool]]:
    """Return the identifiers of a file and the words of its strings, which count as a whole."""
    text = path.read_text("utf-8")
    if path.suffix == ".json":
        identifiers, strings = [], _keys(text)
    else:
        nodes = list(ast.walk(ast.parse(text)))
        identifiers = [path.stem, *_identifiers(nodes)]
        strings = set(_strings(nodes))
    words = (word for string in strings for word in _WORD.findall(string))
    return frozenset([*((i, False) for i in identifiers), *((w, True) for w in words)])


@cache
def _name_of(spelled: str, is_whole: bool, kind: Kind) -> str:  # noqa: FBT001 - a key of the cache
    """Return the technique that a spelling names; empty: none."""
    if any(rule in spelled for rule in kind.rules):
        return ""
    plain = _plain(spelled)
    parts = {part.lower() for part in _PARTS.findall(spelled)}
    for name, wanted in _wanted(kind):
        is_short = len(wanted) <= SHORT
        if plain == wanted or (not is_whole and (wanted in parts if is_short else wanted in plain)):
            return name
    return ""


@cache
def _wanted(kind: Kind) -> tuple[tuple[str, str], ...]:
    """Return names, the longest first, and how they are compared."""
    return tuple((name, _plain(name)) for name in sorted(kind.names, key=len, reverse=True))


def _plain(text: str) -> str:
    return "".join(_PARTS.findall(text.replace("_", " "))).lower()


def _identifiers(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        for field in ("id", "attr", "name", "arg", "asname"):
            if isinstance(value := getattr(node, field, None), str):
                yield from value.split(".")
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from node.module.split(".")


def _strings(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield string constants that are no docstring of anything."""
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


def _keys(text: str) -> set[str]:
    """Return the keys of all objects of a JSON text."""
    found: set[str] = set()
    json.loads(text, object_pairs_hook=lambda pairs: found.update(key for key, _ in pairs))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
