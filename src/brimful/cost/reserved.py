"""What the caching allocator makes of a prediction: its requests replayed at a card's capacity."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import msgspec

from brimful.allocator.config import parse_settings
from brimful.allocator.held import Held, held_of
from brimful.allocator.replay import Requests, least_reserved_bytes
from brimful.cost.deepspeed_requests import engine_requests
from brimful.cost.estimate import tensor_limit_bytes
from brimful.cost.outside import Room, num_groups, room_of
from brimful.cost.preference import is_judged, runs_reference
from brimful.cost.programs import kernels_of
from brimful.cost.recipes import RECIPES
from brimful.cost.requests import requests_of
from brimful.cost.row_sums import chips_of
from brimful.cost.stage_requests import row_makers
from brimful.cost.stage_site import site_of
from brimful.files.remembered import keep
from brimful.files.traced import num_kept
from brimful.hardware.cluster import Cluster, Device
from brimful.hardware.cuda_chips import version_of
from brimful.hardware.cuda_libraries import libraries
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.values.job import Job
from brimful.values.plan import PredictedReserved
from brimful.values.strategy import Strategy, gathers, is_flat

Makers = tuple[Callable[[], Requests], ...]


class Seen(NamedTuple):
    """What was looked at of a strategy, which hangs on a card's chip and not on its size.

    Attributes:
        made: What devices ask for, by their place.
        least: What they hold at least, of a card without end, by place and rounding of sizes.
        held: What they hold, by place, settings and bytes of the card; None: one without end.
    """

    made: dict[int, Requests]
    least: dict[tuple[int, tuple[int, ...]], int]
    held: dict[tuple[int, str, int | None], Held]


def unseen() -> Seen:
    """Return what was seen of a strategy that nobody looked at."""
    return Seen({}, {}, {})


MOST_SEEN, MOST_MADE = 4096, 8
"""Strategies of which numbers are kept, and of which requests are: these take megabytes each."""
_seen: dict[Hashable, Seen] = {}
"""Of every job, strategy and kind of chip, whatever the settings of the allocator: searches of
one command look at the same strategies again and again, for ways out and for other cards."""
_made: dict[Hashable, dict[int, Requests]] = {}


def _seen_of(job: Job, strategy: Strategy, device: Device) -> Seen:
    """Return what was seen of a strategy so far; more is added where it is looked at."""
    plain = msgspec.structs.replace(strategy, allocator="")
    key = num_kept(), msgspec.msgpack.encode(job), plain, _chip_of(job, strategy, device)
    if key not in _seen:
        keep(_seen, key, unseen(), most=MOST_SEEN)
    if key not in _made:
        keep(_made, key, {}, most=MOST_MADE)
    return _seen[key]._replace(made=_made[key])


def _chip_of(job: Job, strategy: Strategy, device: Device) -> Hashable:
    """Return what requests hang on of a chip: cards of many generations ask for the same."""
    version = version_of(device.capability)
    by_chip = OPTIMIZERS[job.optimizer].hangs_on_chip
    return (
        device.kernels,
        kernels_of(device, strategy.fused_kernels),
        libraries().cublas_bytes(version),
        version if by_chip or chips_of(job, device) else None,
    )


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
    seen: Seen

    @property
    def requests(self) -> tuple[Requests, ...]:
        """What each kind of device asks for."""
        return tuple(map(self._requests, range(len(self.makers))))

    def excess_bytes(self, allocator: str) -> int:
        """Return what it would hold, nothing given back, beyond what it surely may; 0: it fits.

        Of several devices the first that does not fit is enough, and others are not looked at.

        ``allocator``: as for ``reserved``.
        """
        every = (self._unhindered_bytes(place, allocator) for place in range(len(self.makers)))
        return next((held - self._most_bytes for held in every if held > self._most_bytes), 0)

    def is_hopeless(self, allocator: str) -> bool:
        """Tell, without a replay, whether it holds more than it surely may; False: it may fit.

        ``allocator``: as for ``reserved``.
        """
        every = (self._least_bytes(place, allocator) for place in range(len(self.makers)))
        return any(least > self._most_bytes for least in every)

    def fits(self, allocator: str) -> bool:
        """Whether it surely fits, nothing given back; ``allocator``: as for ``reserved``."""
        return not self.is_hopeless(allocator) and not self.excess_bytes(allocator)

    def reserved(self, allocator: str) -> PredictedReserved:
        """Replay it at capacity; of several devices the one that fares worst.

        ``allocator``: settings as ``PYTORCH_CUDA_ALLOC_CONF`` spells them; empty: the defaults.
        Raises InputError: a setting is unknown.
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
        settings, least = parse_settings(allocator), self.seen.least
        key = place, settings.roundup_power2_divisions
        if key not in least:
            least[key] = least_reserved_bytes(self._requests(place), settings)
        return least[key]

    def _unhindered_bytes(self, place: int, allocator: str) -> int:
        """Return the most that a device would hold of a card without end."""
        return self._held(place, allocator, None).peak_reserved_bytes

    def _held(self, place: int, allocator: str, capacity_bytes: int | None) -> Held:
        """Replay what a device asks of a card of this size."""
        key, known = (place, allocator, capacity_bytes), self.seen.held
        if key not in known:
            settings = parse_settings(allocator)
            requests = self._requests(place)
            known[key] = held_of(requests, settings=settings, capacity_bytes=capacity_bytes)
        return known[key]

    def _at_capacity(self, place: int, allocator: str) -> PredictedReserved:
        unhindered = self._unhindered_bytes(place, allocator)
        settings, limit = parse_settings(allocator), _limit_bytes(self.cluster)
        capacity, firm = self.room.most_bytes, self.room.firm_bytes
        held, num_retries, short = unhindered, 0, 0
        if unhindered > capacity or settings.garbage_collection_threshold:
            held, num_retries, short = self._held(place, allocator, capacity)
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


def candidate_of(job: Job, cluster: Cluster, strategy: Strategy) -> Candidate | None:
    """Return what a strategy that has a formula asks for; None on a CPU.

    None too where a reference is asked through what is gathered: its own gathers were not derived,
    and without them what is held is up to 14 % off. And where nobody traced its forward pass. And
    of FSDP1's replicas of shards: what is held was 11 % higher in the one case that was compared.
    Of DeepSpeed what was compared is told: parameters in 16 bits, and nothing on the host.
    """
    asks_gathered = runs_reference(strategy.reference) and gathers(strategy)
    is_hybrid = is_flat(strategy) and strategy.dp_replicate > 1
    is_theirs = strategy.engine != "torch"
    is_compared = strategy.offload == NO_OFFLOAD and bool(RECIPES[job.precision].master)
    if cluster.device.kernels != "cuda" or asks_gathered or is_hybrid:
        return None
    if is_theirs and not is_compared:
        return None
    if not is_judged(job, strategy.attention, strategy.reference, cluster.device):
        return None
    room = room_of(cluster.device, num_groups=num_groups(strategy))
    ask = engine_requests if is_theirs else requests_of
    makers: Makers = (partial(ask, job, strategy, cluster.device),)
    if strategy.pp > 1:
        makers = row_makers(site_of(job, strategy, cluster.device))
    return Candidate(cluster, room, makers, _seen_of(job, strategy, cluster.device))


def predicted_reserved(job: Job, cluster: Cluster, strategy: Strategy) -> PredictedReserved | None:
    """Replay a strategy with its own allocator; None where its sequence is not known."""
    candidate = candidate_of(job, cluster, strategy)
    return None if candidate is None else candidate.reserved(strategy.allocator)
