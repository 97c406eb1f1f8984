"""The state of the host's generator: memory of the device, where that is a CPU.

A checkpoint keeps it to draw the same once more. Beside a GPU it lies on the host, as it does here.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._subclasses.fake_tensor import FakeTensor

from brimful.pretend import kernels
from brimful.pretend.device import NAME
from brimful.pretend.replacing import replaced


@contextmanager
def states_counted() -> Iterator[None]:
    """Let copies of the state be of the pretend device inside the block, where it is a CPU."""
    if kernels.current() != "cpu":
        yield
        return
    size, take = torch.get_rng_state().numel(), torch.set_rng_state

    def get_rng_state() -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=NAME)

    def set_rng_state(state: torch.Tensor) -> None:
        if not isinstance(state, FakeTensor):
            take(state)

    with replaced([(torch, get_rng_state.__name__, get_rng_state),
                   (torch, set_rng_state.__name__, set_rng_state)]):  # fmt: skip
        yield
