"""What FSDP1 asks for as it makes flat parameters, and before it first runs.

A model is there sharded by rows. Unit by unit, blocks first, its parameters come whole, are put
together in a flat one, and of that a device keeps its share. Before the first forward the room for
whole units is made once and given back: in the type that computes, and in that of the parameters
where these are wider.

Source: ``build/parallel/flat.py``; ``torch/distributed/fsdp/_flat_param.py`` of torch 2.13
(``_init_flat_param_and_metadata``, ``shard``, ``init_flat_param_attributes``).
"""

from math import prod

from brimful.cost.asked import Asked
from brimful.cost.flat_shares import unit_share, units_of
from brimful.cost.recipes import HALF_BYTES
from brimful.cost.shards import computed_bytes
from brimful.cost.trained import trained_recipe
from brimful.values.job import Job


def flatten(asked: Asked, job: Job, num_shards: int) -> None:
    """Ask for what makes flat parameters of shards of rows, which were asked for first, and go."""
    element = trained_recipe(job).parameter
    for unit in units_of(job):
        whole = [asked.allocate(prod(shape) * element) for _, shape in unit]
        asked.free(place for place, _ in unit)
        share = unit_share(unit, num_shards)
        flat = asked.allocate(share * num_shards * element)
        asked.allocate(share * element)
        asked.free([flat, *whole])


def begin(asked: Asked, job: Job, num_shards: int) -> None:
    """Ask for what comes and goes before the first forward."""
    element, computed = trained_recipe(job).parameter, computed_bytes(job.precision)
    for unit in units_of(job):
        share = unit_share(unit, num_shards)
        if computed < element:
            asked.pass_by([share * HALF_BYTES])
        asked.pass_by([share * num_shards * computed])
        if computed < element:
            asked.pass_by([share * num_shards * element])
