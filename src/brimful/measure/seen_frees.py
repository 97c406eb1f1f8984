"""Letting the profiler see the frees of what processes send each other.

A collective of gloo runs on a thread of its own, which holds what is sent until just after it has
said that it is done. If it is the last to let go, the memory is freed on a thread that the profiler
does not watch, and looks like a leak of a whole bucket. So, while a meter watches, each
collective is followed by a moment's wait: then this thread is the last. DDP sends its buckets by
itself, so that a backward is followed by one wait; it is longer, because a whole bucket was once
held by a thread that a busy machine had put aside. What DDP is built by sends tensors from within
one call, so that nobody can wait: it is marked, as it leaves nothing behind.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import REDUCE_OP_TO_STR
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.profiler import record_function

from brimful.build.parallel.collectives import gathered, scattered
from brimful.measure.allocations import PASSING

WAIT_S = 0.002
"""Many times what the other thread needs to leave a function."""
LONG_WAIT_S = 0.03
"""Several turns of a processor that others want too."""
_NAMES = (
    "all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor",
    "reduce_scatter_single", "all_reduce", "broadcast", "all_to_all_single",
)  # fmt: skip

_BUILDING = "_broadcast_coalesced"
"""By which DDP sends parameters and buffers, in flat copies, when it is made."""


def has_processes() -> bool:
    """Say whether this process sends anything to others."""
    return bool(dist.is_available() and dist.is_initialized())


def let_go() -> None:
    """Wait until other threads have let go of what a backward sent."""
    if has_processes():
        time.sleep(LONG_WAIT_S)


@contextmanager
def frees_seen() -> Iterator[None]:
    """Wait a moment behind every collective inside the block; nothing where there are none."""
    if not has_processes():
        yield
        return
    originals = {name: getattr(dist, name) for name in (*_NAMES, _BUILDING) if hasattr(dist, name)}
    for name, collective in originals.items():
        seen = _marked if name == _BUILDING else _followed_by_a_wait
        setattr(dist, name, seen(collective))
    of_graphs = torch.library.Library("_c10d_functional", "IMPL")
    for name, call in _OF_GRAPHS.items():
        of_graphs.impl(name, call, "CPU")
    try:
        yield
    finally:
        of_graphs._destroy()  # noqa: SLF001 - nothing else takes it back
        for name, collective in originals.items():
            setattr(dist, name, collective)


def _gathered(x: torch.Tensor, _size: int, name: str) -> torch.Tensor:
    return gathered(x, _resolve_process_group(name))


def _scattered(x: torch.Tensor, op: str, _size: int, name: str) -> torch.Tensor:
    assert op == "sum", op
    return scattered(x, _resolve_process_group(name))


def _reduced(x: torch.Tensor, op: str, name: str) -> torch.Tensor:
    dist.all_reduce(x, getattr(dist.ReduceOp, op.upper()), _resolve_process_group(name))
    return x


_OF_GRAPHS = {
    "all_gather_into_tensor": _gathered, "reduce_scatter_tensor": _scattered,
    "all_reduce_": _reduced,
}  # fmt: skip
"""What a compiler calls in their place (``torch/_inductor/comm_lowering.py``)."""


def _followed_by_a_wait(collective: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(collective)
    def call(*args: Any, async_op: bool = False, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():  # a graph's own collectives: else it would break
            if "op" in kwargs:  # Dynamo names it for PyTorch's own function alone
                kwargs["op"] = REDUCE_OP_TO_STR[kwargs["op"]]
            return collective(*args, async_op=async_op, **kwargs)
        work = collective(*args, async_op=True, **kwargs)
        if work is not None:
            work.wait()
            time.sleep(WAIT_S)
        return work if async_op else None

    return call


def _marked(call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def marked(*args: Any, **kwargs: Any) -> Any:
        with record_function(PASSING):
            return call(*args, **kwargs)

    return marked
