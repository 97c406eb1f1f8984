"""Which parameters are in which flat one of FSDP1, and what the first device has of each.

A device has its share of every unit's numbers: the first one the first parameters of each, whole,
and nothing of the last.
"""

from itertools import islice
from math import prod

from brimful.cost.shapes import Shape
from brimful.models.config import layout_of
from brimful.models.layout import all_parameters
from brimful.values.job import Job

Unit = list[tuple[int, Shape]]
"""Parameters with their places among all."""


def units_of(job: Job) -> list[Unit]:
    """List the units of a model that trains in full, in the order in which they are made."""
    layout = layout_of(job.model)
    shapes = (parameter.shape for parameter in all_parameters(layout))
    every = enumerate(shapes)
    rest, blocks = list(islice(every, len(layout.embedding))), list[Unit]()
    for run in layout.blocks:
        blocks += (list(islice(every, len(run.parameters))) for _ in range(run.num_blocks))
        rest += islice(every, len(run.after))
    return [*blocks, [*rest, *every]]


def unit_share(unit: Unit, num_shards: int) -> int:
    """Count the numbers of a unit that each device has."""
    return -(-sum(prod(shape) for _, shape in unit) // num_shards)


def flat_shares(job: Job, num_shards: int) -> list[Shape]:
    """List what the first device has of each parameter that it has some of, in order.

    Each as of as many dimensions as the parameter: a matrix stays one.
    """
    held = dict[int, Shape]()
    for unit in units_of(job):
        left = unit_share(unit, num_shards)
        for place, shape in unit:
            own = min(left, prod(shape))
            left -= own
            if own:
                held[place] = (own, *(1 for _ in shape[1:]))
    return [held[place] for place in sorted(held)]
