"""DistributedDataParallel in a pretend world: its C++ parts look at values, or at another process.

What it allocates stays as it is: the buckets, made by ``reducer.cpp``, and their views.
"""

import contextlib
from collections.abc import Iterator
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from brimful.pretend.replacing import replaced


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """Stand for an exchange between processes that moves nothing."""


def _reduced_at_once(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Return the bucket's buffer, reduced: what the default all-reduce would, in place."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


class _KeepsItsBuckets:
    """A reducer that does not sort its buckets anew after the first step.

    It would agree on the order with the other processes, on values. The new buckets hold the same
    gradients: their number and sizes may differ, their sum does not.
    """

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False


def _without_others(original: Any) -> Any:
    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        # The fake process group's future holds nothing, where the reducer expects the buffer.
        self.register_comm_hook(None, _reduced_at_once)
        self.reducer = _KeepsItsBuckets(self.reducer)

    return init


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Let DistributedDataParallel work without other processes inside the block."""
    init = DistributedDataParallel.__init__
    replacements = (
        (dist, "_verify_params_across_processes", _nothing),
        (dist, "_broadcast_coalesced", _nothing),
        (DistributedDataParallel, "__init__", _without_others(init)),
    )
    with replaced(replacements):
        yield
