"""Addresses of storages that have no memory: programs compare them to find what shares it."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from brimful.pretend.replacing import replaced


def told_apart(original: Any) -> Any:
    """Return what says where a storage is: of a pretended one a number that no other has.

    Args:
        original: ``UntypedStorage.data_ptr``.
    """

    def data_ptr(storage: Any) -> int:
        is_fake = storage.device.type == "meta"
        return int(storage._cdata if is_fake else original(storage))  # noqa: SLF001

    return data_ptr


@contextlib.contextmanager
def storages_told_apart() -> Iterator[None]:
    """Let pretended storages have addresses inside the block, as FSDP1 asks for them."""
    storage = torch.UntypedStorage
    with replaced([(storage, "data_ptr", told_apart(storage.data_ptr))]):
        yield
