"""Scripts beside the package ask it for what it has: nothing types them, few tests run them."""

import ast
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "docs", "validation")


def asked(tree: ast.Module) -> set[tuple[str, str]]:
    """Each name that is imported from the package, with the module that is to have it."""
    return {
        (node.module, name.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "brimful"
        for name in node.names
    }


def is_there(module: str, name: str) -> bool:
    if hasattr(importlib.import_module(module), name):
        return True
    return importlib.util.find_spec(f"{module}.{name}") is not None


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_name_that_scripts_import_is_there(folder):
    read = {
        path: asked(ast.parse(path.read_text("utf-8"))) for path in (ROOT / folder).rglob("*.py")
    }
    assert any(read.values())
    missing = [
        f"{path.relative_to(ROOT)}: {module}.{name}"
        for path, names in read.items()
        for module, name in sorted(names)
        if not is_there(module, name)
    ]
    assert not missing
