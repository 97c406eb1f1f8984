"""What keeps FSDP1 from running on a pretend GPU, and what stands in for it.

``parameter.data = parameter.to(device)`` is refused where the two devices' fake tensors differ in
kind; a new parameter in the old one's place allocates the same. ``Tensor.record_stream`` takes
streams of PyTorch's own class only; the tape takes any. Fake tensors all have the address 0. The
pretend process group does not say that NCCL's stream uses what it broadcasts: a buffer of the first
broadcast is not free again until the host has waited, which it does at every copy to the device.

Source: ``_init_utils.py`` (``_move_module_to_device``), ``_common_utils.py``
(``_no_dispatch_record_stream``) in ``torch/distributed/fsdp``; ``broadcast_coalesced`` in
``torch/csrc/distributed/c10d/comm.cpp``.
"""

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._utils import _flatten_dense_tensors
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    _flat_param,
    _init_utils,
    _runtime_utils,
)

from brimful.pretend.streams import Stream
from brimful.pretend.tape import Tape

MAX_IN_FLIGHT = 2
"""Broadcasts that are not waited for."""


@contextlib.contextmanager
def pretending(tape: Tape) -> Iterator[None]:
    """Let FSDP1 wrap and run modules inside the block.

    Args:
        tape: Is told which tensors other streams use.
    """
    communication = Stream()

    def record_stream(tensor: Tensor, stream: Any) -> None:
        tape._record_stream(tensor, stream)  # noqa: SLF001

    def broadcast(_group: Any, tensors: list[Tensor], bucket_bytes: int, _source: int) -> None:
        in_flight: deque[Tensor] = deque(maxlen=MAX_IN_FLIGHT)
        for bucket in _buckets(tensors, bucket_bytes):
            if len(bucket) > 1:
                in_flight.append(_flatten_dense_tensors(bucket))
                record_stream(in_flight[-1], communication)

    with contextlib.ExitStack() as stack:
        for module, name, value in (
            (_init_utils, "_move_module_to_device", _move_module_to_device),
            (_flat_param, "_no_dispatch_record_stream", record_stream),
            (_runtime_utils, "_no_dispatch_record_stream", record_stream),
            (FakeTensor, "data_ptr", _data_ptr),
            (torch.distributed, "_broadcast_coalesced", broadcast),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def _buckets(tensors: list[Tensor], bucket_bytes: int) -> list[list[Tensor]]:
    """Fill buckets by type, in order, until one is full."""
    done: list[list[Tensor]] = []
    filling: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        bucket = filling.setdefault(tensor.dtype, [])
        bucket.append(tensor)
        if sum(x.nbytes for x in bucket) >= bucket_bytes:
            done.append(filling.pop(tensor.dtype))
    return [*done, *filling.values()]


def _data_ptr(tensor: Tensor) -> int:
    """Return a number that differs where the memory does: FSDP1 asks whether two are the same."""
    offset = tensor.storage_offset() * tensor.element_size()
    place: int = tensor.untyped_storage()._cdata  # noqa: SLF001
    return place + offset


def _move_module_to_device(
    module: nn.Module, _ignored_params: Any, _ignored_buffers: Any, device: torch.device | None
) -> None:
    queue = deque([module])
    while queue:
        current = queue.popleft()
        _move_own(current, device)
        children = current.children()
        queue.extend(x for x in children if not isinstance(x, FullyShardedDataParallel))


def _move_own(module: nn.Module, device: torch.device | None) -> None:
    before = [x for x in module.parameters(recurse=False) if x.device.type == "cpu"]
    if before and device is not None:
        torch.get_device_module(device).synchronize()
    for name, parameter in module.named_parameters(recurse=False):
        if parameter.device.type == "cpu":
            moved = parameter.detach().to(device)
            setattr(module, name, nn.Parameter(moved, requires_grad=parameter.requires_grad))
    for name, buffer in module.named_buffers(recurse=False):
        if buffer.device.type == "cpu":
            setattr(module, name, buffer.to(device))
