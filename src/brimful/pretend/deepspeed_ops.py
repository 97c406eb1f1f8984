"""What stands for the extensions that DeepSpeed compiles when they are first asked for.

Its optimizers' kernels read and write tensors that their Python has made, in place: they allocate
nothing. Nobody compiles anything here, and no kernel of a CPU may run on tensors without values.

Source: ``op_builder/builder.py``, ``ops/adam/{fused_adam,cpu_adam}.py``, ``ops/lion/*.py``,
``ops/adagrad/cpu_adagrad.py`` and ``csrc/{adam,lion,adagrad}`` of DeepSpeed 0.19.8.
"""

import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from brimful.errors import UnsupportedError
from brimful.pretend.known_values import KnownValues
from brimful.pretend.other_kernels import OtherKernels
from brimful.pretend.when_imported import Changes

PACKAGE = "deepspeed"
_WORDS = "what its optimizers' kernels do: they write in place and allocate nothing (0.19.8)"
_FUNCTIONS = {
    "fused_adam": ("multi_tensor_adam",),
    "fused_lion": ("multi_tensor_lion",),
    "cpu_adam": ("create_adam", "adam_update", "adam_rollback", "destroy_adam"),
    "cpu_lion": ("create_lion", "lion_update", "destroy_lion"),
    "cpu_adagrad": ("create_adagrad", "adagrad_update", "destroy_adagrad"),
}
"""What each extension has, by the name under which it is built."""


def changes(kernels: OtherKernels, known: KnownValues) -> dict[str, Changes]:
    """Return what is changed in DeepSpeed so that it compiles nothing.

    ``kernels``: where launches are noted, and what stands for its extensions.
    """
    return {"deepspeed.ops.op_builder.builder": functools.partial(_loads, kernels, known)}


def _loads(
    kernels: OtherKernels, known: KnownValues, builder: Any
) -> Iterator[tuple[Any, str, Any]]:
    def load(self: Any, verbose: bool = False) -> Any:  # noqa: FBT001, FBT002, ARG001 - theirs
        if self.name not in _FUNCTIONS:
            raise UnsupportedError(
                f"DeepSpeed would compile {self.name} for the card, and nothing here knows what it "
                f"allocates (those that are known: {', '.join(_FUNCTIONS)}); leave it off"
            )
        kernels.stood_in[f"{PACKAGE}'s {self.name}"] = _WORDS
        made = {name: _writes(name, kernels, known) for name in _FUNCTIONS[self.name]}
        return SimpleNamespace(**made)

    yield builder.OpBuilder, "load", load


def _writes(name: str, kernels: OtherKernels, known: KnownValues) -> Callable[..., None]:
    def run(*arguments: Any) -> None:
        written = {str(number): x for number, x in enumerate(_tensors(arguments))}
        kernels.launch(f"{PACKAGE}.{name}", written, known)

    return run


def _tensors(given: Any) -> Iterator[torch.Tensor]:
    """List the tensors among arguments and lists of them."""
    for each in given:
        if isinstance(each, list | tuple):
            yield from _tensors(each)
        elif isinstance(each, torch.Tensor):
            yield each
