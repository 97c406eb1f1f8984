"""Memory of the host: who is told when some is taken, and how it is taken.

What is kept on the host is allocated inside ``on_host``, which says what it is for. Whoever counts
bytes listens: on a CPU the device's memory is the host's as well, and nothing else tells the two
apart. On CUDA blocks that are copied from or to are pinned (page-locked), so that copies run beside
the kernels; PyTorch's allocator rounds each to a power of two and keeps it for later ones.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch

from brimful.build.own import own_memory, sharded_as

Listener = Callable[[str, bool], None]
"""Called with what host memory is for, and whether taking it begins (True) or has ended (False)."""
_listeners: list[Listener] = []
HOST = torch.device("cpu")


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call ``listener`` whenever host memory is taken inside the block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextlib.contextmanager
def on_host(purpose: str) -> Iterator[None]:
    """Say that what is allocated inside the block is kept on the host, and what for."""
    for listener in _listeners:
        listener(purpose, True)
    try:
        yield
    finally:
        for listener in _listeners:
            listener(purpose, False)


def take(
    purpose: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Take host memory that copies from or to a device run with."""
    with on_host(purpose):
        return torch.empty(shape, dtype=dtype, device=HOST, pin_memory=device.type == "cuda")


def take_like(purpose: str, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Take host memory of a tensor's shape, type and order of dimensions; see ``take``.

    Of a sharded tensor it is this device's part, sharded likewise.
    """
    own = own_memory(tensor)
    with on_host(purpose):
        memory = torch.empty_like(own, device=HOST, pin_memory=device.type == "cuda")
    return sharded_as(tensor, memory)
