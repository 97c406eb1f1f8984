"""What devices that share every matrix send each other in one micro-batch, in seconds.

In a block all tokens are gathered twice, before attention and before the MLP, and what the devices
have of them is added up and scattered twice; backward does the opposite of each. A block that is
computed again gathers twice more, and scatters once more: what its last product gives nobody needs.
Norms, and biases behind a sum, are whole on every device, and their gradients are added up one by
one. The embedding scatters, the head gathers; of each token's logits three numbers are exchanged.

Nothing hides it: what is sent is waited for by what computes next.

Source: ``build.parallel`` (``tensor.py``, ``vocabulary.py``); Korthikanti et al. 2022,
arXiv:2205.05198, section 4.2.2.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from brimful.cost.comm import Collective, collective_seconds
from brimful.cost.family import Family, family_chunks, family_tokens
from brimful.cost.pieces import piece_shape
from brimful.cost.programs import HALF
from brimful.cost.recipes import FP32_BYTES, RECIPES
from brimful.cost.shards import HALF_BYTES, computed_bytes
from brimful.cost.trajectory import Array
from brimful.hardware.cluster import Cluster
from brimful.models.config import layout_of
from brimful.models.layout import parts
from brimful.values.job import Job


class Sent(NamedTuple):
    """How large micro-batches are: numbers, or arrays that broadcast.

    Attributes:
        tokens: Of all devices of a group together.
        chunks: Pieces of the loss.
        num_blocks: Blocks that are computed again.
    """

    tokens: Array
    chunks: Array
    num_blocks: Array


class Widths(NamedTuple):
    """Bytes of one number, where tokens stand between layers and where a layer writes them.

    Autocast casts behind a gather, so that the residual stream is sent in fp32; what a product
    gives is in 16 bits. Elsewhere both are of the type that computes.
    """

    stream: int
    term: int


def widths_of(job: Job, family: Family) -> Widths:
    """Return in which types tokens are sent."""
    if job.precision in HALF and not family.gathers:
        return Widths(FP32_BYTES, HALF_BYTES)
    element = computed_bytes(job.precision)
    return Widths(element, element)


def sent_of(job: Job, family: Family) -> Sent:
    """Return how large the micro-batches of a family are: [strategies] or numbers."""
    num_blocks = np.atleast_1d(np.asarray(family.num_blocks, dtype=np.float64))
    tokens, chunks = family_tokens(job, family), family_chunks(job, family)
    return Sent(np.asarray(tokens, float), np.asarray(chunks, float), num_blocks)


class Message(NamedTuple):
    """Collectives of one kind and size in a micro-batch: numbers, or arrays that broadcast.

    Attributes:
        kind: What they do.
        num_bytes: Of the whole tensor.
        times: How many.
    """

    kind: Collective
    num_bytes: Any
    times: Any


def messages_of(job: Job, family: Family, sent: Sent) -> Iterator[Message]:
    """Yield what a device of a group sends in a micro-batch.

    ``family``: says the degree, and in which types is sent.
    """
    stream, term = (
        sent.tokens * (job.model.hidden_size * element) for element in widths_of(job, family)
    )
    twice = 2.0 * job.model.num_layers
    yield Message("all-gather", stream, twice + 2 * sent.num_blocks + 2)
    yield Message("all-gather", term, twice)
    yield Message("reduce-scatter", term, twice + sent.num_blocks)
    yield Message("reduce-scatter", stream, twice + 2)
    each = sent.tokens / sent.chunks * FP32_BYTES
    times = sent.chunks * (1 + (sent.chunks > 1))
    yield Message("all-reduce", each, times)
    yield Message("all-reduce", 2 * each, times)
    yield from _norms(job, family)


def _norms(job: Job, family: Family) -> Iterator[Message]:
    """Yield the gradients of what every device has whole, each by itself."""
    element = computed_bytes(job.precision) if family.gathers else RECIPES[job.precision].gradient
    found: Counter[int] = Counter()
    for parameters, times in parts(layout_of(job.model)):
        for parameter in parameters:
            if piece_shape(parameter, family.tp) == parameter.shape:
                found[parameter.num_elements] += times
    for size, times in found.items():
        yield Message("all-reduce", size * element, times)


def exchange_seconds(job: Job, family: Family, cluster: Cluster, sent: Sent) -> Array:
    """Return the seconds that a micro-batch waits for the other devices of its group.

    ``family``: says the degree, and in which types is sent. ``cluster``: says the links; NaN where
    one is unknown. Returns seconds, in the shape that the parts of ``sent`` broadcast to.
    """
    return waited_seconds(messages_of(job, family, sent), family.tp, cluster, sent)


def waited_seconds(messages: Iterable[Message], degree: int, cluster: Cluster, sent: Sent) -> Array:
    """Return the seconds of all messages of a group of so many devices; of one device none."""
    total = np.zeros(np.broadcast_shapes(*(np.shape(part) for part in sent)))
    if degree == 1:
        return total
    for message in messages:
        each = collective_seconds(message.kind, message.num_bytes, degree, cluster)
        total = total + message.times * each
    return total
