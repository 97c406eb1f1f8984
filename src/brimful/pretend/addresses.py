"""Addresses of storages that have no memory: programs compare them to find what shares it."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from brimful.pretend.replacing import replaced


def storage_address(original: Any) -> Callable[[Any], int]:
    """Return what says where a storage is: of a pretended one a number that no other has."""

    def data_ptr(storage: Any) -> int:
        is_fake = storage.device.type == "meta"
        return int(storage._cdata if is_fake else original(storage))  # noqa: SLF001

    return data_ptr


@contextlib.contextmanager
def storages_told_apart() -> Iterator[None]:
    """Let pretended storages have addresses inside the block, and tensors with them.

    FSDP1 asks by them whether a flat parameter is its own piece, and reshards it where it is not.
    """
    storage, tensor = torch.UntypedStorage, torch.Tensor
    located = storage_address(storage.data_ptr)
    plain = tensor.data_ptr

    def data_ptr(found: Any) -> int:
        if not isinstance(found, FakeTensor):
            return int(plain(found))
        begin = located(found.untyped_storage())
        return begin + int(found.storage_offset() * found.element_size())

    with replaced([(storage, "data_ptr", located), (tensor, "data_ptr", data_ptr)]):
        yield
