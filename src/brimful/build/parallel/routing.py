"""How many rows the experts of each device get: read where tokens are real, assumed elsewhere.

A program's rows are sorted by expert; how many each expert gets is known to the device that
computed the router, and told the others. Under a fake mode no value is there: whoever simulates
says how many rows come, or they are as many as this device sends, which is what perfect balance
gives.

Shapes: E experts of a block, e of them on each device of a group of G = E / e devices.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch._guards import detect_fake_mode
from torch.distributed import ProcessGroup

from brimful.build.phases import in_backward

Assumed = Callable[[int, int, bool], int]
"""Says how many rows a device's experts get, from the number of the sparse block among the model's,
from 0, the rows that each device of its group sends in all, and whether a pass is recomputed."""


class Rows(NamedTuple):
    """Whose rows go where, in one block and one micro-batch.

    Attributes:
        sent: Rows to each device of the group.
        received: Rows from each.
        experts: [sum of ``received``], int64: for which of this device's experts each row is.
    """

    sent: list[int]
    received: list[int]
    experts: torch.Tensor


def balanced(_block: int, num_sent: int, _is_recomputed: bool) -> int:  # noqa: FBT001 - ``Assumed``
    """Every device gets as many rows as it sends."""
    return num_sent


_assumed: ContextVar[Assumed] = ContextVar("assumed_routing", default=balanced)


@contextlib.contextmanager
def assumed(routing: Assumed) -> Iterator[None]:
    """Say how tokens are routed wherever their values are unknown, inside the block."""
    token = _assumed.set(routing)
    try:
        yield
    finally:
        _assumed.reset(token)


def rows_of(load_E: torch.Tensor, block: int, num_rows: int, group: ProcessGroup) -> Rows:  # noqa: N803
    """Tell the group how many rows come for each expert.

    ``load_E``: [E], int64: this device's rows for each expert of the block. ``group``: the devices;
    all call this.
    """
    size = group.size()
    theirs_Ge = torch.empty_like(load_E)  # noqa: N806
    dist.all_to_all_single(theirs_Ge, load_E, group=group)
    if detect_fake_mode() is None:
        both = torch.stack([load_E, theirs_Ge]).view(2, size, -1).sum(-1)
        sent, received = both.tolist()  # the host waits for the device once
    else:
        sent = shared_out(num_rows, size)
        received = shared_out(_assumed.get()(block, num_rows, in_backward()), size)
    own_e = torch.arange(len(load_E) // size, device=load_E.device)
    experts = own_e.repeat(size).repeat_interleave(theirs_Ge, output_size=sum(received))
    return Rows(sent, received, experts)


def shared_out(num: int, parts: int) -> list[int]:
    """Divide a number as evenly as whole numbers can be; the first parts get what is over."""
    each, over = divmod(num, parts)
    return [each + (part < over) for part in range(parts)]
