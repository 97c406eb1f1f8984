"""What the caching allocator makes of a prediction: its requests replayed at a card's capacity."""

from typing import NamedTuple

from brimful.allocator.config import parse_settings
from brimful.allocator.replay import Requests, replay
from brimful.cost.estimate import allocatable_bytes, tensor_limit_bytes
from brimful.cost.requests import requests_of
from brimful.hardware.cluster import Cluster
from brimful.job import Job
from brimful.plan import PredictedReserved
from brimful.strategy import Strategy


class Candidate(NamedTuple):
    """A strategy and what it asks for, which no setting of the allocator changes."""

    cluster: Cluster
    requests: Requests

    def reserved(self, allocator: str) -> PredictedReserved:
        """Replay it.

        Args:
            allocator: Settings as ``PYTORCH_CUDA_ALLOC_CONF`` spells them; empty: the defaults.

        Raises:
            InputError: A setting is unknown.
        """
        settings, cluster = parse_settings(allocator), self.cluster
        capacity = allocatable_bytes(cluster.device)
        free = replay(self.requests, settings=settings, capacity_bytes=None)
        done = free
        if free.peak_reserved_bytes > capacity or settings.garbage_collection_threshold:
            done = replay(self.requests, settings=settings, capacity_bytes=capacity)
        limit = tensor_limit_bytes(cluster) if cluster.memory_limit_bytes else None
        over = 0 if limit is None else max(0, done.peak_reserved_bytes - limit)
        failed = done.out_of_memory
        return PredictedReserved(
            allocator=allocator,
            capacity_bytes=capacity,
            limit_bytes=limit,
            predicted_peak_reserved_bytes=done.peak_reserved_bytes,
            predicted_unhindered_bytes=free.peak_reserved_bytes,
            num_retries=done.num_retries,
            short_bytes=failed.short_bytes if failed else over,
        )


def candidate_of(job: Job, cluster: Cluster, strategy: Strategy) -> Candidate | None:
    """Return what a strategy asks for; None where that sequence is not known, or on a CPU.

    Known are strategies that have a formula, but for pipelines, and models beside which a second
    one stays (DPO): their formulas are levels, not sequences.
    """
    is_known = strategy.pp == 1 and job.task != "dpo"
    if cluster.device.kernels != "cuda" or not is_known:
        return None
    return Candidate(cluster, requests_of(job, strategy, cluster.device))


def predicted_reserved(job: Job, cluster: Cluster, strategy: Strategy) -> PredictedReserved | None:
    """Replay a strategy with its own allocator; None where its sequence is not known."""
    candidate = candidate_of(job, cluster, strategy)
    return None if candidate is None else candidate.reserved(strategy.allocator)
