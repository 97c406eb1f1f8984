"""What devices that part experts send each other in one micro-batch, in seconds.

In a block each device says how many rows go to each expert, sends the rows and the weights that its
router gave them, and gets what the experts made of them; backward sends the gradients of all three
the other way. A block that is computed again does its forward's once more. Nothing hides it: what
is sent is waited for by what computes next.

Tokens are routed evenly, so that every device gets as many rows as it sends. Known error: of an
architecture whose record does not say that a router's weights are fp32 they are counted in the type
that computes, two bytes too few beside a row.

Source: ``build.parallel.experts``; Lepikhin et al. 2020, arXiv:2006.16668, section 3.
"""

from collections.abc import Iterator

import numpy as np

from brimful.cost.exchange import Message, Sent, exchange_seconds, waited_seconds
from brimful.cost.family import Family
from brimful.cost.recipes import FP32_BYTES
from brimful.cost.shards import computed_bytes
from brimful.cost.trajectory import Array
from brimful.hardware.cluster import Cluster
from brimful.models.architectures import record_of
from brimful.models.config import experts_of
from brimful.values.job import Job

_COUNT_BYTES = 8


def expert_messages(job: Job, sent: Sent) -> Iterator[Message]:
    """Yield what a device of a group sends in a micro-batch.

    ``sent``: how large micro-batches are; its tokens are those of one device.
    """
    experts, element = experts_of(job.model), computed_bytes(job.precision)
    weight = FP32_BYTES if record_of(job.model.model_type).block.wide_shares else element
    choices = sent.tokens * experts.num_experts_per_token
    backward = len(experts.sparse_blocks)
    forward = backward + np.searchsorted(experts.sparse_blocks, sent.num_blocks)
    row = job.model.hidden_size * element
    yield Message("all-to-all", np.asarray(experts.num_experts * _COUNT_BYTES, float), forward)
    yield Message("all-to-all", choices * row, 2 * (forward + backward))
    yield Message("all-to-all", choices * weight, forward + backward)


def experts_seconds(job: Job, family: Family, cluster: Cluster, sent: Sent) -> Array:
    """Return the seconds that a micro-batch waits for rows of other devices.

    ``family``: says how many devices part the experts; they are neighbours. ``cluster``: says the
    links; NaN where one is unknown.
    """
    return waited_seconds(expert_messages(job, sent), family.ep, cluster, sent)


def exchange_waits_s(job: Job, family: Family, cluster: Cluster, sent: Sent) -> Array:
    """Return the seconds that a micro-batch waits for other devices between its operations.

    Of tensor parallel and of parted experts; see ``experts_seconds``.
    """
    asked = job, family, cluster, sent
    return exchange_seconds(*asked) + experts_seconds(*asked)
