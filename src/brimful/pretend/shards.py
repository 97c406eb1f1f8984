"""One shard of a parameter instead of all: FSDP2 cuts each into as many as there are ranks.

In a world of 512 that is most of the work of simulating one rank, for 510 pieces nobody looks at.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.fsdp._fully_shard import _fsdp_param


class Pieces:
    """The pieces of ``torch.chunk``, empty ones after the last, each cut when it is asked for."""

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        """Keep what is to be cut, into how many pieces, along which dimension."""
        self._tensor = tensor
        self._num = num_chunks
        self._dim = dim

    def __len__(self) -> int:
        """Return how many there are."""
        return self._num

    def __getitem__(self, index: int) -> torch.Tensor:
        """Cut one piece."""
        if not 0 <= index < self._num:
            raise IndexError(index)
        whole = self._tensor.shape[self._dim]
        size = -(-whole // self._num)
        start = index * size
        # What a class of a program's does, as torchao's weights, it does in Python.
        is_plain = not hasattr(type(self._tensor), "__tensor_flatten__")
        with _unseen() if self._tensor.is_meta and is_plain else contextlib.nullcontext():
            if start < whole:
                return self._tensor.narrow(self._dim, start, min(size, whole - start))
            return self._tensor.new_empty(0)


def _unseen() -> contextlib.AbstractContextManager[Any]:
    """Let no mode see what is done: on ``meta`` there is nothing for them to see."""
    return torch._C._DisableTorchDispatch()  # type: ignore[no-any-return]  # noqa: SLF001


@contextlib.contextmanager
def cut_when_asked_for() -> Iterator[None]:
    """Let FSDP2 cut the pieces it looks at only."""
    original = _fsdp_param._chunk_with_empty  # noqa: SLF001
    _fsdp_param._chunk_with_empty = Pieces  # noqa: SLF001
    try:
        yield
    finally:
        _fsdp_param._chunk_with_empty = original  # noqa: SLF001
