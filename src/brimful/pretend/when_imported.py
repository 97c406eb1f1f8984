"""What is done to a library when a program imports it, and undone when the run is over.

The pretend GPU needs none of the libraries that programs bring. So nothing of theirs is imported
here: what has to be replaced in one is replaced as soon as it is there.
"""

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

from brimful.pretend.replacing import replaced

Changes = Callable[[Any], Iterable[tuple[Any, str, Any]]]
"""Of a module, what is to be replaced in it: an object, a name and its value."""


@contextlib.contextmanager
def when_imported(changes: Mapping[str, Changes]) -> Iterator[None]:
    """Change modules inside the block, those that are there and those that are imported later."""
    with contextlib.ExitStack() as stack:

        def change(module: Any) -> None:
            stack.enter_context(replaced(changes[module.__name__](module)))

        for name in changes.keys() & sys.modules.keys():
            change(sys.modules[name])
        finder = _Finder(frozenset(changes), change)
        sys.meta_path.insert(0, finder)
        stack.callback(sys.meta_path.remove, finder)
        yield


class _Finder(MetaPathFinder):
    """Finds nothing by itself; asks the finders after it, and changes what they find."""

    def __init__(self, names: frozenset[str], change: Callable[[Any], None]) -> None:
        self._names = names
        self._change = change
        self._asked: set[str] = set()

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> ModuleSpec | None:
        """Return where a module of the list is, prepared to be changed when it has been run."""
        if name not in self._names or name in self._asked:
            return None
        self._asked.add(name)
        try:
            found = importlib.util.find_spec(name)
        finally:
            self._asked.remove(name)
        if found is not None and found.loader is not None:
            self._prepare(found.loader)
        return found

    def _prepare(self, loader: Any) -> None:
        """Change the module after its loader has run it; the loader stays what it is."""
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            del loader.exec_module
            run(module)
            self._change(module)

        loader.exec_module = exec_module
