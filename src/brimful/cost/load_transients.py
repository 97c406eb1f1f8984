"""What is there for a while as a model is loaded: whole weights of shards, what DDP sends."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod

import numpy as np

from brimful.cost.family import Family, family_shards
from brimful.cost.shapes import largest_parameter
from brimful.cost.states import Bytes, base_bytes, holds_everything
from brimful.cost.trained import (
    first_blocks,
    frozen_element,
    in_order,
    trained_recipe,
    trained_shapes,
)
from brimful.values.job import Job

SENT_BYTES = 250 * 2**20
"""Of the parameters that DDP sends in one copy, or more by the last of them.

Source: ``broadcast_bucket_size`` in ``torch/nn/parallel/distributed.py``; ``BroadcastWork`` and
``broadcast_coalesced`` in ``torch/csrc/distributed/c10d/comm.cpp``, which has two copies at a time.
"""


def drawn_bytes(job: Job, family: Family) -> Bytes:
    """Compute the most bytes beside all that is loaded while it is loaded: [strategies].

    First weights are drawn one parameter at a time, and each device keeps its piece of it: of the
    largest. What DDP sends is gone before its buckets are there, which are no smaller where all
    trains.
    """
    shards = family_shards(family)
    largest = largest_parameter(job.model)
    is_cut = (shards > 1) & (not holds_everything(family)) | (family.tp > 1)
    if family.away.parameters:  # a block's is drawn on the device, and copied to the host
        blocks = first_blocks(job.model, family.away.parameters)  # or quantised there
        largest = max(each.num_elements for parameters in blocks for each in parameters)
    is_drawn = is_cut | bool(family.away.parameters)
    drawn = np.where(is_drawn, largest * frozen_element(job), 0.0)
    if job.adapter is None or not (family.is_spread and holds_everything(family)):
        return drawn
    buckets = sum(map(prod, trained_shapes(job, family.tp))) * trained_recipe(job).gradient
    copies = sent_copies(list(sent_bytes(job, family)))
    return np.maximum(drawn, max(map(sum, pairwise([0, *copies]))) - buckets)


def sent_bytes(job: Job, family: Family) -> Iterator[int]:
    """Yield the bytes of every parameter that DDP sends; what is on the host it leaves alone."""
    if job.adapter is not None:
        goes = family.away.parameters if family.away.frozen else 0
        num_away = sum(map(len, first_blocks(job.model, goes)))
        for (_, in_block), num_bytes in zip(in_order(job), base_bytes(job, family, 1), strict=True):
            num_away -= in_block
            if not in_block or num_away < 0:
                yield num_bytes
    element = trained_recipe(job).parameter
    yield from (prod(shape) * element for shape in trained_shapes(job, family.tp))


def sent_copies(sizes: Sequence[int]) -> list[int]:
    """Return the bytes of the copies that DDP makes of parameters when it is made, one by one.

    Those of several types are taken for one, which the bytes of both copies that are there at a
    time do not tell apart while all are no more than two.
    """
    copies = [0]
    for size in sizes:
        if copies[-1] >= SENT_BYTES:
            copies.append(0)
        copies[-1] += size
    return copies
