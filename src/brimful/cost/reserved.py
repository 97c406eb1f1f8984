"""What the caching allocator makes of a prediction: its requests replayed at a card's capacity."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec

from brimful.allocator.config import parse_settings
from brimful.allocator.replay import Requests, replay
from brimful.cost.estimate import tensor_limit_bytes
from brimful.cost.outside import Room, num_groups, room_of
from brimful.cost.requests import requests_of
from brimful.cost.stage_memory import site_of
from brimful.cost.stage_requests import row_makers
from brimful.hardware.cluster import Cluster
from brimful.job import Job
from brimful.plan import PredictedReserved
from brimful.strategy import Strategy

Makers = tuple[Callable[[], Requests], ...]
Unhindered = dict[tuple[int, str], int]
"""Most bytes that a device would hold of a card without end, by its place and settings."""
Replays = dict[Strategy, Unhindered]
"""What was replayed of one job on as many devices, which other cards with the same kernels share.

By strategy, whatever its settings of the allocator.
"""


@dataclass(frozen=True)
class Candidate:
    """A strategy and what it asks for, which no setting of the allocator changes.

    Attributes:
        cluster: On what.
        room: What each device has for its allocator.
        makers: Of every kind of device, one or the stages of a pipeline, makes what it asks for.
        unhindered: What was replayed on a card without end; more is added.
    """

    cluster: Cluster
    room: Room
    makers: Makers
    unhindered: Unhindered = field(default_factory=dict)
    _made: dict[int, Requests] = field(default_factory=dict)

    @property
    def requests(self) -> tuple[Requests, ...]:
        """What each kind of device asks for."""
        return tuple(map(self._requests, range(len(self.makers))))

    def excess_bytes(self, allocator: str) -> int:
        """Return what it would hold, nothing given back, beyond what it surely may; 0: it fits.

        Of several devices the first that does not fit is enough, and others are not looked at.

        Args:
            allocator: As for ``reserved``.
        """
        for place in range(len(self.makers)):
            excess = self._unhindered_bytes(place, allocator) - self._most_bytes
            if excess > 0:
                return excess
        return 0

    def reserved(self, allocator: str) -> PredictedReserved:
        """Replay it at capacity; of several devices the one that fares worst.

        Args:
            allocator: Settings as ``PYTORCH_CUDA_ALLOC_CONF`` spells them; empty: the defaults.

        Raises:
            InputError: A setting is unknown.
        """
        every = [self._at_capacity(place, allocator) for place in range(len(self.makers))]
        return max(every, key=shortage)

    @property
    def _most_bytes(self) -> int:
        limit, firm = _limit_bytes(self.cluster), self.room.firm_bytes
        return firm if limit is None else min(limit, firm)

    def _requests(self, place: int) -> Requests:
        if place not in self._made:
            self._made[place] = self.makers[place]()
        return self._made[place]

    def _unhindered_bytes(self, place: int, allocator: str) -> int:
        """Return the most that a device would hold of a card without end."""
        key = place, allocator
        if key not in self.unhindered:
            done = replay(
                self._requests(place), settings=parse_settings(allocator), capacity_bytes=None
            )
            self.unhindered[key] = done.peak_reserved_bytes
        return self.unhindered[key]

    def _at_capacity(self, place: int, allocator: str) -> PredictedReserved:
        unhindered = self._unhindered_bytes(place, allocator)
        settings, limit = parse_settings(allocator), _limit_bytes(self.cluster)
        capacity, firm = self.room.most_bytes, self.room.firm_bytes
        held, num_retries, short = unhindered, 0, 0
        if unhindered > capacity or settings.garbage_collection_threshold:
            done = replay(self._requests(place), settings=settings, capacity_bytes=capacity)
            held, num_retries = done.peak_reserved_bytes, done.num_retries
            short = done.out_of_memory.short_bytes if done.out_of_memory else 0
        over = 0 if limit is None else max(0, held - limit)
        return PredictedReserved(
            allocator=allocator,
            capacity_bytes=capacity,
            firm_bytes=firm,
            limit_bytes=limit,
            predicted_peak_reserved_bytes=held,
            predicted_unhindered_bytes=unhindered,
            num_retries=num_retries,
            short_bytes=short or over,
        )


def shortage(reserved: PredictedReserved) -> tuple[int, int, bool, int]:
    """Order outcomes: the least short, the fewest retries, what is firm, then the least held."""
    held = reserved.predicted_peak_reserved_bytes
    return reserved.short_bytes, reserved.num_retries, not reserved.is_firm, held


def _limit_bytes(cluster: Cluster) -> int | None:
    return tensor_limit_bytes(cluster) if cluster.memory_limit_bytes else None


def candidate_of(
    job: Job, cluster: Cluster, strategy: Strategy, seen: Replays | None = None
) -> Candidate | None:
    """Return what a strategy that has a formula asks for; None on a CPU.

    Args:
        job: What is trained.
        cluster: On what.
        strategy: How.
        seen: What was replayed of this job on as many devices with the same kernels.
    """
    if cluster.device.kernels != "cuda":
        return None
    room = room_of(cluster.device, num_groups=num_groups(strategy))
    plain = msgspec.structs.replace(strategy, allocator="")
    unhindered = {} if seen is None else seen.setdefault(plain, {})
    makers: Makers = (partial(requests_of, job, strategy, cluster.device),)
    if strategy.pp > 1:
        makers = row_makers(site_of(job, strategy, cluster.device))
    return Candidate(cluster, room, makers, unhindered)


def predicted_reserved(job: Job, cluster: Cluster, strategy: Strategy) -> PredictedReserved | None:
    """Replay a strategy with its own allocator; None where its sequence is not known."""
    candidate = candidate_of(job, cluster, strategy)
    return None if candidate is None else candidate.reserved(strategy.allocator)
