"""A second corpus that every machine has which can train at all: the prose of torch's own manual.

Its functions and modules are documented in long strings: English, formulas and examples, in a
mark-up of its own. None of it is in the standard library, on which models are trained first.
"""

import ast
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

from brimful.files.writing import write_text

FILES = (
    "_torch_docs.py",
    "_tensor_docs.py",
    "functional.py",
    "distributions/*.py",
    "linalg/*.py",
    "nn/*.py",
    "nn/modules/*.py",
    "nn/utils/*.py",
    "optim/*.py",
    "special/*.py",
)
FEW_FILES = ("functional.py", "optim/*.py")
LEAST_CHARS = 200
"""Shorter strings are messages and names."""
_LEAST_SPACES = 0.08
"""As a share of the characters; prose has twice as many."""


def documents(files: tuple[str, ...] = FILES) -> Iterator[str]:
    """Yield every long string of prose in the order of the files.

    Args:
        files: Patterns below torch's own folder.
    """
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    root = Path(found.origin).parent
    for pattern in files:
        for path in sorted(root.glob(pattern)):
            yield from _strings(path)


def _strings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_prose(node.value):
            yield node.value.strip()


def _is_prose(text: str) -> bool:
    return len(text) >= LEAST_CHARS and text.count(" ") >= _LEAST_SPACES * len(text)


def write_documents(path: Path, files: tuple[str, ...] = FILES) -> None:
    """Write them as JSONL, each once.

    Args:
        path: The file.
        files: Patterns below torch's own folder.
    """
    lines = (json.dumps({"text": text}) for text in dict.fromkeys(documents(files)))
    write_text(path, "".join(f"{line}\n" for line in lines))
