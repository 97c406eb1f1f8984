"""Kernels that are not PyTorch's own: what a program launched, and what it asked for in vain.

A kernel that was written in Triton takes no memory: the program hands it tensors. Nothing runs, so
that nothing is known any more of what a launch may have written into.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from brimful.pretend.known_values import KnownValues


class OtherKernels:
    """What is noted of them during a run.

    Attributes:
        launched: How often each kernel was launched, by its name.
        absent: Packages of kernels that the program asked for and that are not installed, with the
            lines that asked first, by the library that they are of.
        stood_in: Packages that were stood in for, with what they were stood in by.
        is_compiled: Whether the program has a compiler make kernels.
    """

    def __init__(
        self, on_launch: Callable[[str, Mapping[str, Any], int], None] | None = None
    ) -> None:
        """Begin with none.

        ``on_launch``: called with every kernel's name, its arguments by name and its FLOPs, where
        they are known, else 0; None: nobody.
        """
        self._on_launch = on_launch
        self.launched: dict[str, int] = {}
        self.absent: dict[str, dict[str, str]] = {}
        self.stood_in: dict[str, str] = {}
        self.is_compiled = False

    def compiled(self) -> None:
        """Note that a compiler makes kernels, of which nobody hears when they are launched."""
        self.is_compiled = True

    def launch(
        self, name: str, arguments: Mapping[str, Any], known: KnownValues, num_flops: int = 0
    ) -> None:
        """Note a launch.

        ``arguments``: all that it was given, by name; it may have written into each tensor of them.
        """
        self.launched[name] = self.launched.get(name, 0) + 1
        if self._on_launch is not None:
            self._on_launch(name, arguments, num_flops)
        for argument in arguments.values():
            if isinstance(argument, torch.Tensor):
                known.forget(argument)
