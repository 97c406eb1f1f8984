"""The floating-point tensors in what modules take and return."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch


def floats(value: Any) -> Iterator[torch.Tensor]:
    """List the floating-point tensors of what a module takes or returns.

    Masks are left out: theirs are the only infinities that are meant.
    """
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            if "mask" not in str(key):
                yield from floats(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from floats(part)
