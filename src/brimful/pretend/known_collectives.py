"""What collectives make of known integers: every peer is taken to have what this process has.

How many tokens come from whom is such a number: programs gather it, and allocate by it.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

_Group = dist.ProcessGroup
_SAME = (
    dist.ReduceOp.MIN,
    dist.ReduceOp.MAX,
    dist.ReduceOp.AVG,
    dist.ReduceOp.BAND,
    dist.ReduceOp.BOR,
)
"""Reductions that make of equal values what they are."""
_CALLER = inspect.unwrap(dist.all_reduce).__code__


def exchange(func: Any, args: Any) -> bool:
    """Write into tensors what a collective brings, and return whether it is known.

    ``func``: an operation of PyTorch's ``c10d``.
    """
    known = _KNOWN.get(func._schema.name.removeprefix("c10d::"))  # noqa: SLF001
    if known is None:
        return False
    with torch._C._DisableTorchDispatch(), torch.no_grad():  # noqa: SLF001
        return known(*args)


def _group(boxed: Any) -> Any:
    return _Group.unbox(boxed)


def _all_gather(outputs: Any, inputs: Any, *_rest: Any) -> bool:
    for gathered, own in zip(outputs, inputs, strict=True):
        for x in gathered:
            x.copy_(own)
    return True


def _all_gather_whole(output: torch.Tensor, own: torch.Tensor, group: Any, *_rest: Any) -> bool:
    output.view(_group(group).size(), -1).copy_(own.reshape(1, -1))
    return True


def _all_to_all_whole(
    output: torch.Tensor, own: torch.Tensor, group: Any, received: Any, sent: Any, *_rest: Any
) -> bool:
    """Each peer sends this process what this one sends to itself."""
    peers = _group(group)
    if received or sent:
        sizes = list(sent)
        if len(set(received)) > 1 or received[0] != sizes[peers.rank()]:
            return False
        first = sum(sizes[: peers.rank()])
        mine = own[first : first + sizes[peers.rank()]]
        output.view(peers.size(), *mine.shape).copy_(mine.unsqueeze(0))
        return True
    output.view(peers.size(), -1).copy_(own.view(peers.size(), -1)[peers.rank()].unsqueeze(0))
    return True


def _broadcast(_tensors: Any, group: Any, root: int, *_rest: Any) -> bool:
    """What another process has and this one not is not known."""
    return bool(_group(group).rank() == root)


def _all_reduce(tensors: Any, group: Any, *_rest: Any) -> bool:
    """Equal values are added up once for every peer; the least and the largest are what they are.

    Which it is, the operation's own argument does not tell to Python: ``dist.all_reduce`` does.
    """
    # How `dist.all_reduce`, which calls this, reduces; None: something else calls.
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not _CALLER:
        frame = frame.f_back
    operation = None if frame is None else frame.f_locals["op"]
    if operation == dist.ReduceOp.SUM:
        for x in tensors:
            is_one = 0 in x.stride()  # a number that stands for all
            (x[(0,) * x.dim()] if is_one else x).mul_(_group(group).size())
    return operation in _SAME or operation == dist.ReduceOp.SUM


_KNOWN: dict[str, Callable[..., bool]] = {
    "allreduce_": _all_reduce,
    "allgather_": _all_gather,
    "_allgather_base_": _all_gather_whole,
    "alltoall_base_": _all_to_all_whole,
    "broadcast_": _broadcast,
}
