"""How far the host is ahead of the device, where that decides when memory is free again.

A tensor that another stream uses (``record_stream``) is free again when the device has come past
the place where the program let go of it. The host may be ahead of the device by no more than a
launch queue is deep; a program that never waits inside a step is ahead by that much. So a freed
tensor is free again ``LAUNCH_QUEUE`` kernels later, or when the host waits.

Knows nothing of models. Takes every operation for one kernel.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torchtitan_eras import LAUNCH_QUEUE

from brimful.pretend.recording import NEVER, Recording
from brimful.pretend.tape import Tape

NCCL_STREAM = 99
"""Number of the stream on which collectives run; any that is not the default."""
PRIVATE_USE_ONE = 20
"""``c10::DeviceType::PrivateUse1``."""
_KERNEL_SPACES = frozenset({"aten", "fsdp", "_c10d_functional"})
"""Whose operations launch something on the default stream."""
_WITHOUT_KERNEL = frozenset(
    {
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.empty_like.default,
        torch.ops.aten.empty_strided.default,
        torch.ops.aten.new_empty.default,
        torch.ops.aten.record_stream.default,
    }
)


class LaunchQueue(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped to mypy
    """Marks every kernel on a tape, and what collectives touch as used by a stream of theirs."""

    def __init__(self) -> None:
        """Make it; ``watching`` says of which tape."""
        super().__init__()
        self._tape: Tape | None = None
        self._stream: Any = None
        self._shapes_only = False

    @contextlib.contextmanager
    def watching(self, tape: Tape) -> Iterator[None]:
        """Mark ``tape`` inside the block."""
        self._tape, self._stream = (
            tape,
            torch.Stream(stream_id=NCCL_STREAM, device_index=0, device_type=PRIVATE_USE_ONE),
        )
        original = ShardingPropagator._propagate_tensor_meta_non_cached  # noqa: SLF001

        def propagate(*args: Any) -> Any:
            """DTensor finds out shapes with tensors that are fake in a real run too."""
            self._shapes_only = True
            try:
                return original(*args)
            finally:
                self._shapes_only = False

        name = "_propagate_tensor_meta_non_cached"
        with mock.patch.object(ShardingPropagator, name, propagate), self:
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count the operation, and record what a functional collective reads and writes."""
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        if self._shapes_only or not _runs_on_device(out, args):
            return out
        if func.namespace in _KERNEL_SPACES and not func.is_view and func not in _WITHOUT_KERNEL:
            self._tape.mark()
        if func.namespace == "_c10d_functional":
            for tensor in (args[0], out):
                tensor.record_stream(self._stream)
        return out


def _runs_on_device(out: Any, args: Any) -> bool:
    tensors = (x for x in pytree.tree_leaves((out, args)) if isinstance(x, torch.Tensor))
    first = next(tensors, None)
    return first is not None and first.device.type == "gpu"


def freed_by_the_device(recording: Recording) -> Recording:
    """Return the recording with recorded tensors free again when the device has come so far.

    Args:
        recording: Marked by a ``LaunchQueue``.
    """
    until = recording.in_use_until.copy()
    late = np.flatnonzero((recording.died != NEVER) & (until > recording.died))
    place = np.searchsorted(recording.marks, recording.died[late]) + LAUNCH_QUEUE
    ends = np.append(recording.marks, len(recording.events))
    passed = ends[np.minimum(place, len(recording.marks))]
    until[late] = np.minimum(until[late], passed)
    return dataclasses.replace(recording, in_use_until=until)
