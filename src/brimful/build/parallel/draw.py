"""First weights of a sharded model: the same numbers as on one device.

A generator's numbers hang on how many are drawn at once, so each parameter is drawn whole by every
process, one at a time, and each keeps its own piece. No numbers are sent. What other devices of a
pipeline have is drawn and dropped; what is kept on the host is drawn on the device, whose generator
makes other numbers.
"""

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from brimful.build.own import keep_own, own_memory


class DrawnWhole(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped to mypy
    """Inside the block, random numbers that fill a sharded tensor are those of the whole one."""

    def __init__(self, device: torch.device) -> None:
        """Say where numbers are drawn that fill nothing here."""
        super().__init__()
        self._device = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Draw whole what is drawn in place, or copied whole; leave everything else alone."""
        del types
        target: Any = args[0] if args else None
        if func is torch.ops.aten.copy_.default and _is_whole(target, args[1]):
            if not _is_elsewhere(target):
                keep_own(target, args[1].to(self._device, target.dtype))
            return target
        if not _draws(func) or not self._is_drawn_apart(target):
            return func(*args, **(kwargs or {}))
        whole = torch.empty(target.shape, dtype=target.dtype, device=self._device)
        func(whole, *args[1:], **(kwargs or {}))
        if not _is_elsewhere(target):
            keep_own(target, whole)
        return target

    def _is_drawn_apart(self, target: Any) -> bool:
        """Whether a tensor is sharded, or not on the device that draws."""
        if isinstance(target, DTensor):
            return True
        return isinstance(target, torch.Tensor) and target.device.type != self._device.type


def _is_elsewhere(target: Any) -> bool:
    """Whether another device of a pipeline has a tensor, so that it has no bytes here."""
    return isinstance(target, torch.Tensor) and own_memory(target).is_meta


def _is_whole(target: Any, source: Any) -> bool:
    """Whether a sharded tensor is given the numbers of the whole one."""
    return isinstance(target, DTensor) and not isinstance(source, DTensor)


def _draws(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags and func._schema.is_mutable  # noqa: SLF001
