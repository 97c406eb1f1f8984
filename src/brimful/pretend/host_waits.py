"""Which operations let the host wait for the device, and which only give it something to do.

A block that another stream uses is free again when that stream has done with it, and the host looks
whenever it allocates. Time is not known here; two bounds are. Reading a value, and a copy between
host and device that is not said to be ``non_blocking``, wait for the stream
(``aten/src/ATen/native/cuda/Copy.cu``, ``memcpy_and_sync``; ``CUDAScalar.cu``). And a stream takes
only so many launches ahead: ``AHEAD`` of ``recording_builder.py``.
"""

from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from brimful.pretend.device import NAME
from brimful.pretend.real_values import NUMBERS

_HOST = "cpu"
_COPY = torch.ops.aten.copy_.default
_TO_COPY = torch.ops.aten._to_copy.default  # noqa: SLF001 - the operator has no other name
_MADE = frozenset({
    torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default,
    torch.ops.aten.empty_like.default, torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default, torch.ops.aten.detach.default,
})  # fmt: skip
"""Operations that launch nothing, though their schema does not say so."""


def waits(func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether an operation ends only when the device has done what it was given."""
    if func in NUMBERS:
        return str(args[0].device.type) == NAME
    if func is _TO_COPY:
        ends = args[0].device, torch.device(kwargs.get("device") or args[0].device)
        return not kwargs.get("non_blocking") and _crosses(*ends)
    if func is _COPY:
        non_blocking = args[2:] or (kwargs.get("non_blocking", False),)
        return not non_blocking[0] and _crosses(args[0].device, args[1].device)
    return False


def _crosses(one: torch.device, other: torch.device) -> bool:
    """Return whether a copy between two devices goes over to the host or comes from there."""
    return {one.type, other.type} == {NAME, _HOST}


def launched_on(func: Any, shown: Any) -> torch.device | None:
    """Return the GPU that an operation gives something to do, by a tensor of its; None: none."""
    if not isinstance(shown, FakeTensor) or shown.fake_device.type != NAME:
        return None
    return shown.fake_device if launches(func) else None


@cache
def launches(func: Any) -> bool:
    """Return whether an operation gives the device something to do: it is no view, nor empty."""
    return not (func in _MADE or func.is_view)
