"""The many devices of a strategy of which a simulation is one."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from brimful.build.layout import read_built
from brimful.cost.shards import largest_share
from brimful.cost.trained import trained_parameters
from brimful.models.config import has_parameter_count
from brimful.pretend.addresses import storages_told_apart
from brimful.pretend.fake_world import World, pretend_world
from brimful.pretend.gathering import named_buffers
from brimful.pretend.tape import Tape
from brimful.values.job import Job
from brimful.values.strategy import Strategy, gathers_alone, is_flat, world_size


@contextmanager
def world_of(job: Job, strategy: Strategy, tape: Tape, rank: int | None) -> Iterator[None]:
    """Be one of a strategy's many devices inside the block, where there are many.

    ``tape``: which sees nothing of what the world itself does. ``rank``: which device; None: one
    that holds as much as any.
    """
    size, chosen = world_size(strategy), fullest_rank(job, strategy) if rank is None else rank
    if size == 1 and not chosen and not gathers_alone(strategy):
        yield
        return
    degrees = (strategy.pp, strategy.dp_replicate, strategy.dp_shard, strategy.tp, strategy.ep)
    world = World(size=size, rank=chosen, layout=(strategy.zero, *degrees))
    compares = storages_told_apart() if is_flat(strategy) else nullcontext()
    with pretend_world(world, tape.paused), named_buffers(tape), compares:
        yield


@contextmanager
def experts_world(size: int, tape: Tape) -> Iterator[None]:
    """Be one of so many devices that part experts inside the block, and nothing else."""
    world = World(size=size, rank=0, layout=(0, 1, 1, 1, 1, size))
    with pretend_world(world, tape.paused), named_buffers(tape):
        yield


def fullest_rank(job: Job, strategy: Strategy) -> int:
    """Return a device that holds as much as any: the first, but for ZeRO-1's uneven shares."""
    if strategy.zero != 1 or job.task == "module":  # whose parameters nobody has listed
        return 0
    if not has_parameter_count(job.model):
        read_built(job, strategy.attention)
    share = largest_share(trained_parameters(job, strategy.tp), strategy.dp_shard)
    return share.rank * strategy.tp
