"""What stand-ins of whole layers share: how a kernel is noted, and how a function is a program's.

What is tried out before a first call on a machine (Triton's autotuner clears 256 MiB beside each
trial) is not counted: these packages keep its results on disk.
"""

import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import torch

from brimful.pretend.absent import StandIn
from brimful.pretend.device import NAME
from brimful.pretend.known_values import KnownValues
from brimful.pretend.other_kernels import OtherKernels

as_forward = functools.partial(torch.amp.custom_fwd, device_type=NAME)
as_backward = functools.partial(torch.amp.custom_bwd, device_type=NAME)
"""``custom_fwd`` and ``custom_bwd`` of ``torch.amp``, by the pretend GPU's own name."""

Modules = Mapping[str, Mapping[str, Any]]
"""What modules of a package have, by their names."""


class Launch(NamedTuple):
    """Notes kernels.

    Attributes:
        kernels: Where they are noted.
        known: What is forgotten that they may have written.
    """

    kernels: OtherKernels
    known: KnownValues

    def __call__(self, name: str, flops: int, *tensors: torch.Tensor | None) -> None:
        """Note a kernel that passes each tensor once; of products a multiply and an add are two."""
        self.kernels.launch(name, {str(n): x for n, x in enumerate(tensors)}, self.known, flops)


def package(version: str, words: str, make: Callable[[Launch], Modules]) -> Any:
    """Return what makes a stand-in of a package (``stand_in_packages.STAND_INS``)."""

    def stand_in(kernels: OtherKernels, known: KnownValues) -> StandIn:
        modules = make(Launch(kernels, known))

        def fill(module: ModuleType) -> None:
            vars(module).update(modules[module.__name__])

        return StandIn(version, words, fill, modules.__contains__)

    return stand_in


def dense(*tensors: torch.Tensor | None) -> tuple[Any, ...]:
    """Return tensors without gaps, which are copied where they have some."""
    return tuple(None if x is None else x.contiguous() for x in tensors)


def num_chunks(tokens: int, size: int) -> int:
    """Count the chunks of a sequence, of which the last may be shorter."""
    return -(-tokens // size)
