"""What the stages of a pipeline have, put together on the first process."""

from collections.abc import Mapping

import torch
import torch.distributed as dist

from brimful.build.program import Program
from brimful.train.world import is_first, of_all, own_rank
from brimful.values.strategy import stage_rank


def of_all_stages(program: Program, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Bring the tensors of every stage to the first process; of many processes all call this.

    ``program``: its model is cut into stages, or not: then nothing is sent. ``tensors``: of this
    process's stages, whole and on the host where this is the first process of those that have them.
    Returns all of them on the first process's host, under one name each; in others what they gave.
    """
    if program.pipeline is None:
        return dict(tensors)
    listed = of_all([(name, tuple(x.shape), x.dtype) for name, x in tensors.items()])
    senders = [stage_rank(program.strategy, place) for place in range(1, program.strategy.pp)]
    if own_rank() in senders:
        for tensor in tensors.values():
            dist.send(tensor.to(program.device).contiguous(), dst=0)
    if not is_first():
        return dict(tensors)
    found = dict(tensors)
    for sender in senders:
        for name, shape, dtype in listed[sender]:
            room = torch.empty(shape, dtype=dtype, device=program.device)
            dist.recv(room, src=sender)
            found.setdefault(name, room.cpu())
    return found
