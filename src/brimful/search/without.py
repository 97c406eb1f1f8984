"""What a run would take without a technique that it uses, everything else as it is."""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from brimful.cost.estimate import estimate
from brimful.hardware.cluster import Cluster
from brimful.job import Job
from brimful.offload import NONE as NO_OFFLOAD
from brimful.plan import Estimate
from brimful.search.ledger import Point, predict
from brimful.strategy import Strategy
from brimful.techniques.optimizers import OPTIMIZERS, whole_of

LEAST_SHARE = 0.02
"""Of the peak: what saves less is not named."""


class Without(NamedTuple):
    """A run without one technique.

    Attributes:
        technique: What is left out, in words.
        is_jobs: Whether what is learnt hangs on it.
        more_bytes: By how much the peak of live tensors is higher.
    """

    technique: str
    is_jobs: bool
    more_bytes: int


def without(job: Job, cluster: Cluster, strategy: Strategy) -> tuple[Without, ...]:
    """Estimate a run without each technique that saves memory, the largest saving first.

    Args:
        job: What is trained.
        cluster: On what.
        strategy: How.

    Raises:
        UnsupportedError: No formula covers the run.
    """
    peak = estimate(job, cluster, strategy).predicted_peak_allocated_bytes
    found = []
    for technique, point in _plainer(job, strategy):
        made = predict(point, cluster)
        if isinstance(made, Estimate):
            more = made.predicted_peak_allocated_bytes - peak
            found.append(Without(technique, point.job != job, more))
    saving = [each for each in found if each.more_bytes > LEAST_SHARE * peak]
    return tuple(sorted(saving, key=lambda each: -each.more_bytes))


def _plainer(job: Job, strategy: Strategy) -> Iterator[tuple[str, Point]]:
    """Yield the same run with one technique switched off."""

    def with_(**changes: object) -> Point:
        return Point(job, msgspec.structs.replace(strategy, **changes))

    if (rule := OPTIMIZERS[job.optimizer]).compiled:
        yield rule.name, Point(msgspec.structs.replace(job, optimizer=whole_of(rule)), strategy)
    if strategy.activation_checkpointing != "none":
        yield "checkpointing", with_(activation_checkpointing="none")
    if strategy.loss_chunks > 1:
        yield "loss chunks", with_(loss_chunks=1)
    if strategy.zero and strategy.tp == strategy.pp == 1:
        num = strategy.dp_shard * strategy.dp_replicate
        yield f"ZeRO-{strategy.zero}", with_(zero=0, dp_shard=1, dp_replicate=num)
    if strategy.offload != NO_OFFLOAD:
        yield "offload", with_(offload=NO_OFFLOAD)
