"""What a step of a layout costs, with stages or without, by the formulas of the first rung.

One model for both: the seconds of a block are those that a second block adds to a model of one, and
what is around the blocks is the rest. Stages are replayed operation by operation.
"""

from typing import NamedTuple

import msgspec
import numpy as np
from rehearsal_rows import LayoutCost

from brimful.cost.attending import scores_of
from brimful.cost.comm import collective_seconds, overlapped_seconds
from brimful.cost.efficiency import size_of
from brimful.cost.exchange import exchange_seconds, sent_of
from brimful.cost.family import family_of
from brimful.cost.memory import profile_for, step_memory
from brimful.cost.pipeline_replay import replay
from brimful.cost.shards import computed_bytes
from brimful.cost.speed import speed_of
from brimful.cost.step import family_work, step_seconds, update_bytes
from brimful.cost.traffic import traffic_of
from brimful.hardware.cluster import Cluster
from brimful.techniques.parallel.stages import blocks_of_stages, stages_of_device
from brimful.values.job import Job
from brimful.values.strategy import (
    Strategy,
    data_parallel,
    is_selective,
    num_checkpointed,
    num_micro_batches,
    split_of,
)

_BACKWARDS = 2
"""A backward's products are those of two forwards."""


class Seconds(NamedTuple):
    """Of one micro-batch, and of what happens once a step: a block's, or all that is no block's.

    Attributes:
        work: Of a micro-batch, on the device itself.
        exchange: Of a micro-batch's messages under tensor parallelism.
        update: Of clip and optimizer, once a step.
        gather: Of gathering parameters once.
        reduce: Of reducing gradients once.
    """

    work: float
    exchange: float
    update: float
    gather: float
    reduce: float

    def times(self, number: int) -> "Seconds":
        """Return those of as many blocks."""
        return Seconds(*(number * seconds for seconds in self))

    def plus(self, other: "Seconds") -> "Seconds":
        """Return the sum."""
        return Seconds(*(a + b for a, b in zip(self, other, strict=True)))


_NOTHING = Seconds(0.0, 0.0, 0.0, 0.0, 0.0)


def cost_of(job: Job, cluster: Cluster, strategy: Strategy) -> LayoutCost:
    """Cost a step.

    Args:
        job: What is trained.
        cluster: On what.
        strategy: How; with as many devices as the cluster has.
    """
    devices = seconds_of_devices(job, cluster, strategy)
    num = num_micro_batches(job, strategy)
    forward = 1 / (1 + _BACKWARDS + _again_share(job, strategy))
    ran = replay(
        strategy.pp_schedule,
        num_micro_batches=num,
        stage_s=[(forward * busy, (1 - forward) * busy) for busy in map(_busy, devices)],
        send_s=_send_s(job, cluster, strategy),
        chunks=strategy.stages_per_device,
    )
    slowest = max(devices, key=_busy)
    gathers = num if strategy.pp == 1 or strategy.zero == 3 else 1  # noqa: PLR2004 - ZeRO-3
    traffic = max(gathers * one.gather + one.reduce for one in devices)
    beside = float(overlapped_seconds(np.asarray(ran.total_s), np.asarray(traffic)))
    update = max(one.update for one in devices)
    step = beside + update
    speed = speed_of(job, cluster, strategy, step)
    again = num * slowest.work * forward * _again_share(job, strategy)
    return LayoutCost(
        work_s=num * slowest.work,
        again_s=again,
        exchange_s=num * slowest.exchange,
        bubble_s=ran.total_s - num * _busy(slowest),
        exposed_s=beside - ran.total_s,
        update_s=update,
        bubble_share=max(0.0, ran.bubble_share),
        step_s=step,
        tokens_per_s=job.global_batch * job.seq_len / step / cluster.num_devices,
        mfu=speed.mfu,
    )


def seconds_of_devices(job: Job, cluster: Cluster, strategy: Strategy) -> list[Seconds]:
    """Return the seconds of each device of a row: its blocks', and the last one's head's.

    The embedding's own work is a look-up, and is counted with the head's.
    """
    split = split_of(strategy)
    blocks = blocks_of_stages(job.model, split)
    kinds = _kinds_of_blocks(job, strategy)
    each, ends = {}, _NOTHING
    for kind in set(kinds):
        one, two = (_of_model(job, cluster, strategy, number, kind) for number in (1, 2))
        each[kind] = two.plus(one.times(-1))
        ends = one.plus(each[kind].times(-1))
    found = []
    for device in range(strategy.pp):
        stages = stages_of_device(split, device)
        own = _NOTHING
        for kind in (kinds[block] for stage in stages for block in blocks[stage]):
            own = own.plus(each[kind])
        found.append(own.plus(ends) if split.num_stages - 1 in stages else own)
    return found


def _busy(seconds: Seconds) -> float:
    return seconds.work + seconds.exchange


def _of_model(
    job: Job, cluster: Cluster, strategy: Strategy, num_blocks: int, kind: str
) -> Seconds:
    """Return the seconds of a model of few blocks of one kind, without stages."""
    alone = msgspec.structs.replace(
        strategy, pp=1, pp_schedule="1f1b", stages_per_device=1, stage_blocks=(),
        activation_checkpointing=kind,
    )  # fmt: skip
    model = msgspec.structs.replace(job.model, num_layers=num_blocks)
    per_batch = strategy.micro_batch * data_parallel(strategy)
    works = []
    for batches in (1, 2):
        few = msgspec.structs.replace(job, model=model, global_batch=batches * per_batch)
        family = family_of(few, alone)
        profile = profile_for(few, alone.attention, cluster.device, family)
        works.append(family_work(few, profile, family, moved_by_update=0.0))
    states = step_memory(few, alone, profile, cluster.device).states
    moved = update_bytes(few, cluster.device, states, family)
    size = size_of(few, alone.micro_batch, tp=alone.tp)
    later = type(works[0])(*(two - one for one, two in zip(*works, strict=True)))
    nothing = type(later)(*(0 * amount for amount in later))
    updating = nothing._replace(moved_bytes=nothing.moved_bytes + moved)
    scores = scores_of(few, alone.attention, cluster.device)
    timed = [step_seconds(work, few, cluster.device, size, scores) for work in (later, updating)]
    work_s, update_s = (0.0 if t is None else float(sum(map(_number, t))) for t in timed)
    traffic = traffic_of(few, family, cluster)
    exchange = exchange_seconds(few, family, cluster, sent_of(few, family))
    gather, reduce = map(_number, (traffic.per_micro_batch, traffic.per_step))
    return Seconds(work_s, _number(exchange), update_s, gather, reduce)


def _number(value: object) -> float:
    return float(getattr(value, "flat", [value])[0])


def _kinds_of_blocks(job: Job, strategy: Strategy) -> list[str]:
    """Say of each block how it is checkpointed: the first ones are."""
    num, num_layers = (
        num_checkpointed(strategy, num_layers=job.model.num_layers),
        job.model.num_layers,
    )
    again = "selective" if is_selective(strategy) else "full"
    return [again] * num + ["none"] * (num_layers - num)


def _again_share(job: Job, strategy: Strategy) -> float:
    """Return what is computed again of a forward: nearly nothing where it is selective."""
    if is_selective(strategy):
        return 0.0
    return num_checkpointed(strategy, num_layers=job.model.num_layers) / job.model.num_layers


def _send_s(job: Job, cluster: Cluster, strategy: Strategy) -> float:
    """Return the seconds of a message between stages: each device of a cut sends its tokens."""
    if strategy.pp == 1:
        return 0.0
    numbers = strategy.micro_batch * job.seq_len * job.model.hidden_size / strategy.tp
    num_bytes = numbers * computed_bytes(job.precision)
    stride = strategy.tp * data_parallel(strategy)
    return float(collective_seconds("send", num_bytes, 2, cluster, stride))
