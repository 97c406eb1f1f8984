"""Whose an allocation is: module paths, in a forward pass, in a backward pass and outside both."""

from bisect import bisect_right
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules import module as hooks

_OF_COMPILER = "_orig_mod"
"""Where what ``torch.compile`` returns keeps the program's module."""
_current_node = torch._C._current_autograd_node  # noqa: SLF001
_next_sequence_number = torch._C._autograd._get_sequence_nr  # noqa: SLF001


def as_program(path: str) -> str:
    """Return a module's path as the program would give it, compiled or not."""
    return ".".join(part for part in path.split(".") if part != _OF_COMPILER)


class Owners:
    """Follows which module is being called and which autograd nodes its call made.

    In the forward pass the owner is the innermost module being called. In the backward pass it is
    the module whose forward created the running autograd node: nodes carry increasing sequence
    numbers, so the numbers at which modules begin and end tell which. For that the backward pass
    must run on the calling thread.
    """

    def __init__(self) -> None:
        """Know no module yet."""
        self._paths: WeakKeyDictionary[torch.nn.Module, str] = WeakKeyDictionary()
        self._shared: WeakKeyDictionary[torch.nn.Module, list[str]] = WeakKeyDictionary()
        """All paths of modules that stand in several places, as activations of a class may."""
        self._parameter_paths: dict[int, str] = {}
        self._stack: list[str] = []
        self._floor = 0
        self._numbers: list[int] = [0]
        self._owners: list[str] = [""]
        self._handles: list[Any] = []
        self.run_again: set[str] = set()
        """Paths of the modules that a backward pass called: checkpoints are computed anew."""

    def name(self, module: torch.nn.Module, prefix: str = "") -> None:
        """Give the submodules of ``module`` and their parameters paths."""
        places: dict[torch.nn.Module, list[str]] = {}
        for name, child in module.named_modules(prefix=prefix, remove_duplicate=False):
            places.setdefault(child, []).append(as_program(name))
        for child, paths in places.items():
            self._paths[child] = paths[0]
            self._shared.pop(child, None)
            if len(paths) > 1:
                self._shared[child] = paths
        for name, parameter in module.named_parameters(prefix=prefix):
            self._parameter_paths[id(parameter)] = as_program(name.rpartition(".")[0])

    def knows(self, module: torch.nn.Module) -> bool:
        """Whether the module has been given a path."""
        return module in self._paths

    def begin_phase(self) -> None:
        """Forget the modules that are being called now: what follows is not their forward."""
        self._floor = len(self._stack)

    def watch(self) -> None:
        """Begin to follow calls of modules, any module's."""
        self._handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]

    def unwatch(self) -> None:
        """Stop following them."""
        for handle in self._handles:
            handle.remove()

    @property
    def num_called(self) -> int:
        """How many modules are being called, one in another."""
        return len(self._stack)

    def now(self, node: Any) -> str | None:
        """Return who owns what is allocated now; None: no module's doing.

        ``node``: the running autograd node, or None.
        """
        if len(self._stack) > self._floor:
            return self._stack[-1]
        if node is None:
            return None
        variable = getattr(node, "variable", None)
        if variable is not None:
            return self._parameter_paths.get(id(variable), "")
        place = bisect_right(self._numbers, node._sequence_nr()) - 1  # noqa: SLF001
        return self._owners[place]

    def _enter(self, module: torch.nn.Module, args: Any) -> None:  # noqa: ARG002
        path = self._paths.get(module)
        if path is None:
            above = self._stack[-1] if self._stack else ""
            path = f"{above}.{type(module).__name__}".removeprefix(".")
        elif self._stack and module in self._shared:
            above = f"{self._stack[-1]}."
            path = next((p for p in self._shared[module] if p.startswith(above)), path)
        self._stack.append(path)
        if _current_node() is not None:
            self.run_again.add(path)
        self._mark(path)

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:  # noqa: ARG002
        if self._stack:
            self._stack.pop()
        self._mark(self._stack[-1] if self._stack else "")

    def _mark(self, owner: str) -> None:
        number = _next_sequence_number()
        if self._numbers[-1] == number:
            self._owners[-1] = owner
        else:
            self._numbers.append(number)
            self._owners.append(owner)
