"""What a step takes at least, on any number of devices of a kind: a bound from below.

n devices share a step's samples evenly, so each has 1 / n of its work at the same micro-batch. What
differs between ways of spreading is bounded by the least of them: micro-batches by the cheaper of
the first, which adds to no gradients, and a later one; cut matrices by those cut in two, since
further cuts make products narrower and divide no more. Left out, as nothing takes less than no
time: the update, and all that is sent. Counts are of the same traces as ``search.grid``'s; a test
compares every grid with its bound.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import msgspec
import numpy as np

from brimful.cost.attending import scores_of
from brimful.cost.efficiency import size_of
from brimful.cost.family import Family, bodies_of, runs_one
from brimful.cost.memory import profile_for
from brimful.cost.own_programs import traced_program
from brimful.cost.profiles import Body
from brimful.cost.programs import kernels_of
from brimful.cost.step import StepWork, step_seconds
from brimful.cost.trajectory import Array
from brimful.cost.work import grid_work
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Device
from brimful.search.grid_values import Grid, grid_dimensions
from brimful.search.pins import MAX_MICRO_BATCH
from brimful.search.space import CHUNKS
from brimful.techniques.parallel.tensor import check_tensor
from brimful.values.job import OVER_TOKENS, Job
from brimful.values.strategy import Attention, Recompute, default_reference

_BODIES: tuple[tuple[Body, Recompute], ...] = (
    ("plain", "full"), ("mixed", "full"), ("later-mixed", "full"), ("checkpointed", "full"),
    ("mixed", "selective"), ("later-mixed", "selective"), ("checkpointed", "selective"),
)  # fmt: skip


class Key(NamedTuple):
    """What makes steps run the same operations.

    Attributes:
        gathers: Whether parameters are sharded and gathered.
        is_cut: Whether several devices share every matrix.
        body: Which blocks are checkpointed, in kind.
        recompute: What those compute again.
    """

    gathers: bool
    is_cut: bool
    body: Body
    recompute: Recompute


class Work(NamedTuple):
    """What one device would do at least of a whole step: [amounts, micro-batches]."""

    micro_batches: tuple[int, ...]
    amounts: dict[Key, Array]


Least = dict[Key, dict[int, float]]
"""By program and micro-batch: seconds of a step on one device."""


def key_of(grid: Grid) -> Key:
    """Return which bound a grid has; without checkpoints what is recomputed does not matter."""
    one = grid.batches[0]
    recompute: Recompute = "full" if one.body == "plain" else one.recompute
    return Key(one.gathers, one.tp > 1, one.body, recompute)


def least_work(job: Job, attention: Attention, device: Device) -> Work:
    """Count what every program does at least, whatever the kind of GPU."""
    sizes = range(1, min(job.global_batch, MAX_MICRO_BATCH) + 1)
    micro_batches = tuple(n for n in sizes if job.global_batch % n == 0)
    amounts = {
        key: _least_amounts(job, attention, device, key, micro_batches)
        for key in _keys(job, attention, device)
    }
    return Work(micro_batches, amounts)


def _keys(job: Job, attention: Attention, device: Device) -> Iterator[Key]:
    kernels = kernels_of(device)
    for gathers in (False, True):
        for tp in (1, 2):
            if tp > 1 and not _may_cut(job):
                continue
            for body, recompute in _BODIES:
                program = traced_program(job, attention, kernels, recompute, gathers=gathers, tp=tp)
                if program is not None and body in bodies_of(job):
                    yield Key(gathers, tp > 1, body, recompute)


def _may_cut(job: Job) -> bool:
    try:
        check_tensor(job, 2)
    except (InputError, UnsupportedError):
        return False
    return True


def _least_amounts(
    job: Job, attention: Attention, device: Device, key: Key, micro_batches: tuple[int, ...]
) -> Array:
    """Return the least over chunks of the loss: [amounts, micro-batches]."""
    least = np.full((4, len(micro_batches)), np.inf)
    for chunks in CHUNKS if job.task in OVER_TOKENS else (1,):
        every = [
            (place, _family(job, key, micro_batch, chunks))
            for place, micro_batch in enumerate(micro_batches)
            if micro_batch * job.rows_per_sample * job.seq_len % chunks == 0
        ]
        for _, some in groupby(every, lambda each: runs_one(job, each[1])):  # another program
            places, families = zip(*some, strict=True)
            found = _amounts(job, attention, device, families)
            least[:, places] = np.minimum(least[:, places], found)
    return least


def _family(job: Job, key: Key, micro_batch: int, chunks: int) -> Family:
    blocks = bodies_of(job)[key.body][0]
    return Family(
        micro_batch=micro_batch,
        loss_chunks=chunks,
        body=key.body,
        num_blocks=np.array([blocks]),
        recompute=key.recompute,
        zero=3 if key.gathers else 0,
        reference=default_reference(job),
        tp=2 if key.is_cut else 1,
    )


def _amounts(job: Job, attention: Attention, device: Device, families: tuple[Family, ...]) -> Array:
    """Return the least work of a device and step, micro-batches as cheap as any: [4, families]."""
    one = families[0]
    profile = profile_for(job, attention, device, one)
    twice = msgspec.structs.replace(job, global_batch=2 * job.global_batch)
    dims, blocks = grid_dimensions(job, families), np.atleast_1d(np.asarray(one.num_blocks))
    once, both = (
        grid_work(each, (profile,), families, dims, blocks)[..., 0] for each in (job, twice)
    )
    times = np.array([job.global_batch // family.micro_batch for family in families])
    later = (both - once) / times
    first = once - (times - 1) * later
    work: Array = np.minimum(first, later) * times * one.tp
    return work


def least_seconds(work: Work, job: Job, attention: Attention, device: Device) -> Least:
    """Turn work into seconds of one device; NaN where a rate is unknown."""
    found: Least = {}
    scores = scores_of(job, attention, device)
    for key, amounts in work.amounts.items():
        size = size_of(job, np.array(work.micro_batches), tp=2 if key.is_cut else 1)
        seconds = step_seconds(StepWork(*amounts), job, device, size, scores)
        whole = np.full(len(work.micro_batches), np.nan)
        if seconds is not None:
            whole = seconds.matrix_s + seconds.memory_s + seconds.launch_s
        found[key] = dict(zip(work.micro_batches, map(float, whole), strict=True))
    return found


def least_of_grid(least: Least, grid: Grid, num_devices: int) -> float:
    """Return what no strategy of a grid is faster than, in seconds of a step."""
    mine = least[key_of(grid)]
    return min(mine[family.micro_batch] for family in grid.batches) / num_devices


def least_of_all(least: Least) -> float:
    """Return what one device takes at least under any strategy; NaN where a rate is unknown."""
    return min((s for each in least.values() for s in each.values()), default=float("nan"))
