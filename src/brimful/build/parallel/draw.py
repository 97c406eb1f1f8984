"""First weights of a sharded model: the same numbers as on one device.

A generator's numbers hang on how many are drawn at once, so each parameter is drawn whole by every
process, one at a time, and each keeps its own piece. No numbers are sent.
"""

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from brimful.build.parallel.own import keep_own


class DrawnWhole(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped to mypy
    """Inside the block, random numbers that fill a sharded tensor are those of the whole one."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Draw whole what is drawn in place; leave everything else alone."""
        del types
        target = args[0] if args else None
        if not isinstance(target, DTensor) or not _draws(func):
            return func(*args, **(kwargs or {}))
        whole = torch.empty(target.shape, dtype=target.dtype, device=target.device)
        func(whole, *args[1:], **(kwargs or {}))
        keep_own(target, whole)
        return target


def _draws(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags and func._schema.is_mutable  # noqa: SLF001
