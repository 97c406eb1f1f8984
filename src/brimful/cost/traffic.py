"""What the devices of a strategy send each other in one optimizer step, in seconds.

ZeRO-3 gathers every block twice per micro-batch and reduces its gradients once; ZeRO-2 gathers
once; DDP and ZeRO-1 reduce whole gradients, and ZeRO-1 sends what each device has updated. Replicas
of a shard reduce among themselves, and experts that devices part are sharded over those that have
the same. Held gradients are reduced once a step. What devices that share every matrix send each
other stands in ``exchange.py``; they are neighbours, so that those which share a copy are as far
apart as a group of them is large. What devices that part experts send stands in
``expert_exchange.py``.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from brimful.cost.comm import collective_seconds, overlapped_seconds
from brimful.cost.expert_shards import padded_experts, part_experts, same_experts
from brimful.cost.family import Family, family_shards
from brimful.cost.recipes import RECIPES
from brimful.cost.shapes import Shape
from brimful.cost.shards import computed_bytes, cut_of, padded
from brimful.cost.states import updated_of_all
from brimful.cost.step import StepSeconds
from brimful.cost.trained import Part, block_kinds, trained_parts
from brimful.cost.trajectory import Array
from brimful.hardware.cluster import Cluster
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.values.job import Job


class Traffic(NamedTuple):
    """Seconds of collectives, one after another: [strategies] each.

    Attributes:
        per_micro_batch: Of every micro-batch.
        per_step: What happens once a step.
    """

    per_micro_batch: Array
    per_step: Array


BACKWARD_SHARE = 2 / 3
"""Of a micro-batch: two products for each of the forward pass."""


def later_s(own_s: Array, traffic: Traffic, times: Array | float) -> Array:
    """Return by how much the collectives beside a step make it later.

    What happens once a step, above all gradients that were held, begins in the last micro-batch's
    backward pass and runs beside nothing else: however many micro-batches came before.

    ``own_s``: of the device's own work, and of what it waits for.
    """
    each: Array = times * traffic.per_micro_batch
    share = BACKWARD_SHARE / np.maximum(times, 1)
    before, last = own_s * (1 - share), own_s * share
    later = overlapped_seconds(before, each * (1 - share)) - before
    return later + overlapped_seconds(last, each * share + traffic.per_step) - last


def traffic_of(job: Job, family: Family, cluster: Cluster) -> Traffic:
    """Return the same apart by how often it happens, whatever the micro-batch."""
    shards = family_shards(family)
    gathers, reduces = np.zeros_like(shards), np.zeros_like(shards)
    if not family.is_spread:
        return Traffic(gathers, reduces)
    *blocks, rest = trained_parts(job, family.tp, apart=family.ep > 1)
    num_blocks = block_kinds(job.model).values()
    again = family.zero == 3  # noqa: PLR2004 - ZeRO-3
    experts = part_experts(job, family.ep) if family.ep > 1 else []
    for stacks, num in zip(experts, num_blocks, strict=False):
        if stacks:
            gathered, reduced = experts_traffic(job, family, cluster, stacks)
            gathers = gathers + num * (1 + again) * gathered
            reduces = reduces + num * reduced
    counted = [(block, num, again) for block, num in zip(blocks, num_blocks, strict=True)]
    for part, times, twice in (*counted, (rest, 1, False)):
        if family.gathers:
            gathers = gathers + times * (1 + twice) * gather_seconds(
                job, part, family, shards, cluster
            )
        reduces = reduces + times * reduce_seconds(job, part, family, shards, cluster)
    sent = _sent_seconds(job, family, cluster) + _gathered_seconds(job, family, cluster)
    if family.accumulate == "reduce-each":
        return Traffic(gathers + reduces, sent * np.ones_like(shards))
    return Traffic(gathers, reduces + sent)


def with_traffic(
    seconds: StepSeconds, traffic: Traffic, waited: Array, times: Array | float
) -> StepSeconds:
    """Add what of the collectives does not run beside the device's own work.

    ``waited``: of those that it waits for (``exchange.py``).
    """
    alone = seconds.matrix_s + seconds.memory_s + seconds.launch_s
    return seconds._replace(exposed_s=waited + later_s(alone + waited, traffic, times))


def gather_seconds(job: Job, part: Part, family: Family, shards: Array, cluster: Cluster) -> Array:
    """Return the seconds of gathering the parameters of a part once: [strategies]."""
    cut = cut_of(family)
    num_bytes = cut(part.every, shards) * computed_bytes(job.precision)
    num_bytes += cut(part.packed, shards)
    return collective_seconds("all-gather", num_bytes, shards, cluster, family.tp)


def reduce_seconds(job: Job, part: Part, family: Family, shards: Array, cluster: Cluster) -> Array:
    """Return those of its gradients: to shards, then among replicas; or all at once, whole."""
    element = RECIPES[job.precision].gradient
    if not family.gathers:
        whole = padded(part.trained, np.ones_like(shards)) * element
        return collective_seconds("all-reduce", whole, family.num_data_parallel, cluster, family.tp)
    num_bytes = cut_of(family)(part.trained, shards) * element
    scattered = collective_seconds("reduce-scatter", num_bytes, shards, cluster, family.tp)
    replicas, stride = family.num_data_parallel / shards, shards * family.tp
    among = collective_seconds("all-reduce", num_bytes / shards, replicas, cluster, stride)
    return scattered + np.where(replicas > 1, among, 0.0)


def experts_traffic(
    job: Job, family: Family, cluster: Cluster, stacks: Sequence[Shape]
) -> tuple[Array, Array]:
    """Return the seconds of gathering one block's parted experts once, and of reducing them.

    Devices with the same experts are as far apart as a group that parts them is large; replicas of
    the same shard as far as all that share a copy.
    """
    same, shards = same_experts(family), family_shards(family)
    numbers = padded_experts(stacks, same)
    sent = numbers * computed_bytes(job.precision)
    gathered = collective_seconds("all-gather", sent, same, cluster, family.ep)
    num_bytes = numbers * RECIPES[job.precision].gradient * (job.adapter is None)
    scattered = collective_seconds("reduce-scatter", num_bytes, same, cluster, family.ep)
    replicas = family.num_data_parallel / shards
    among = collective_seconds("all-reduce", num_bytes / same, replicas, cluster, shards)
    alone = same == 1
    return (
        np.where(alone, 0.0, gathered),
        np.where(alone, 0.0, scattered) + np.where(replicas > 1, among, 0.0),
    )


def _gathered_seconds(job: Job, family: Family, cluster: Cluster) -> Array | float:
    """An update that computes of whole matrices gathers them one after the other."""
    rule = OPTIMIZERS[job.optimizer]
    if not family.gathers or rule.shards != "gathered":
        return 0.0
    shards, same = family_shards(family), same_experts(family)
    return np.array([
        sum(
            num * float(collective_seconds("all-gather", num_bytes, one, cluster, apart)[0])
            for (num_bytes, is_stack), num in _gathered(job, family, int(own)).items()
            for one, apart in [(alike, family.ep) if is_stack else (np.array([own]), family.tp)]
        )
        for own, alike in zip(shards, same[:, None], strict=True)
    ])  # fmt: skip


def _gathered(job: Job, family: Family, num_shards: int) -> Counter[tuple[int, bool]]:
    """Count what an update gathers, by its bytes and by whether it is a stack of experts.

    Rows of a stack are shared by those that have the same experts.
    """
    rule = OPTIMIZERS[job.optimizer]
    every = updated_of_all(job, family, num_shards)
    found = ((rule.gathered_bytes(each), len(each.shape) > 2) for each in every)  # noqa: PLR2004
    return Counter(each for each in found if each[0])


def _sent_seconds(job: Job, family: Family, cluster: Cluster) -> Array | float:
    if family.zero != 1:
        return 0.0
    *blocks, rest = trained_parts(job, family.tp)
    shards = np.ones(1)
    numbers = padded(rest.trained, shards)
    for block, num_blocks in zip(blocks, block_kinds(job.model).values(), strict=True):
        numbers = numbers + num_blocks * padded(block.trained, shards)
    return sent_seconds(job, numbers, family, cluster)


def sent_seconds(job: Job, numbers: Array, family: Family, cluster: Cluster) -> Array:
    """ZeRO-1: every device sends the parameters that it has updated to those that share them."""
    num_bytes = numbers * RECIPES[job.precision].parameter
    return collective_seconds("all-gather", num_bytes, family_shards(family), cluster, family.tp)
