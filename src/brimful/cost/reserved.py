"""What the caching allocator makes of a prediction: its requests replayed at a card's capacity."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import msgspec

from brimful.allocator.config import parse_settings
from brimful.allocator.replay import Requests, least_reserved_bytes, replay
from brimful.cost.estimate import tensor_limit_bytes
from brimful.cost.outside import Room, num_groups, room_of
from brimful.cost.preference import is_judged, runs_reference
from brimful.cost.requests import requests_of
from brimful.cost.stage_requests import row_makers
from brimful.cost.stage_site import site_of
from brimful.hardware.cluster import Cluster
from brimful.values.job import Job
from brimful.values.plan import PredictedReserved
from brimful.values.strategy import Strategy, gathers, is_flat

Makers = tuple[Callable[[], Requests], ...]


class Seen(NamedTuple):
    """What was looked at of a strategy, which hangs on no card's size.

    Attributes:
        made: What devices ask for, by their place.
        least: What they hold at least, of a card without end, by place and settings.
        unhindered: What they hold, likewise.
    """

    made: dict[int, Requests]
    least: dict[tuple[int, str], int]
    unhindered: dict[tuple[int, str], int]


Replays = dict[Strategy, Seen]
"""What was seen of one job on as many devices, which other cards with the same kernels share.

By strategy, whatever its settings of the allocator.
"""


def _unseen() -> Seen:
    return Seen({}, {}, {})


@dataclass(frozen=True)
class Candidate:
    """A strategy and what it asks for, which no setting of the allocator changes.

    Attributes:
        cluster: On what.
        room: What each device has for its allocator.
        makers: Of every kind of device, one or the stages of a pipeline, makes what it asks for.
        seen: What was looked at of it; more is added.
    """

    cluster: Cluster
    room: Room
    makers: Makers
    seen: Seen = field(default_factory=_unseen)

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
        every = (self._unhindered_bytes(place, allocator) for place in range(len(self.makers)))
        return next((held - self._most_bytes for held in every if held > self._most_bytes), 0)

    def is_hopeless(self, allocator: str) -> bool:
        """Tell, without a replay, whether it holds more than it surely may; False: it may fit.

        Args:
            allocator: As for ``reserved``.
        """
        every = (self._least_bytes(place, allocator) for place in range(len(self.makers)))
        return any(least > self._most_bytes for least in every)

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

    @property
    def _outside_bytes(self) -> int:
        """The middle of what lies outside the allocator."""
        return self.cluster.device.usable_bytes - (self.room.firm_bytes + self.room.most_bytes) // 2

    def _requests(self, place: int) -> Requests:
        made = self.seen.made
        if place not in made:
            made[place] = self.makers[place]()
        return made[place]

    def _least_bytes(self, place: int, allocator: str) -> int:
        """Return what a device would hold of a card without end, at least."""
        key, least = (place, allocator), self.seen.least
        if key not in least:
            settings = parse_settings(allocator)
            least[key] = least_reserved_bytes(self._requests(place), settings)
        return least[key]

    def _unhindered_bytes(self, place: int, allocator: str) -> int:
        """Return the most that a device would hold of a card without end."""
        key, unhindered = (place, allocator), self.seen.unhindered
        if key not in unhindered:
            done = replay(
                self._requests(place), settings=parse_settings(allocator), capacity_bytes=None
            )
            unhindered[key] = done.peak_reserved_bytes
        return unhindered[key]

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
            predicted_process_bytes=held + self._outside_bytes,
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

    None too where a reference is asked through what is gathered: its own gathers were not derived,
    and without them what is held is up to 14 % off. And where nobody traced its forward pass. And
    of FSDP1, which hands memory from stream to stream: its requests were not derived.

    Args:
        job: What is trained.
        cluster: On what.
        strategy: How.
        seen: What was seen of this job on as many devices with the same kernels.
    """
    asks_gathered = runs_reference(strategy.reference) and gathers(strategy)
    is_told = strategy.engine == "torch" and not is_flat(strategy)
    if cluster.device.kernels != "cuda" or asks_gathered or not is_told:
        return None
    if not is_judged(job, strategy.attention, strategy.reference, cluster.device):
        return None
    room = room_of(cluster.device, num_groups=num_groups(strategy))
    plain = msgspec.structs.replace(strategy, allocator="")
    known = _unseen() if seen is None else seen.setdefault(plain, _unseen())
    makers: Makers = (partial(requests_of, job, strategy, cluster.device),)
    if strategy.pp > 1:
        makers = row_makers(site_of(job, strategy, cluster.device))
    return Candidate(cluster, room, makers, known)


def predicted_reserved(
    job: Job, cluster: Cluster, strategy: Strategy, seen: Replays | None = None
) -> PredictedReserved | None:
    """Replay a strategy with its own allocator; None where its sequence is not known.

    Args:
        job: What is trained.
        cluster: On what.
        strategy: How.
        seen: What was replayed before; see ``candidate_of``.
    """
    candidate = candidate_of(job, cluster, strategy, seen)
    return None if candidate is None else candidate.reserved(strategy.allocator)
