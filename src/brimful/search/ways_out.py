"""What would make a job fit that does not: each way is searched anew, none is advice by rote."""

import math
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import NamedTuple

import msgspec

from brimful.cost.estimate import allocatable_bytes, limit_bytes, tensor_limit_bytes
from brimful.cost.states import staying_bytes
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster, spelled
from brimful.models.config import parameter_count
from brimful.search.larger_clusters import EVERY_NODE, cards_for, larger_clusters, with_gpu
from brimful.search.offers import offers, pure_and_rounded
from brimful.search.solve import Solution
from brimful.search.tries import Find, Settle, Tried, host_short_bytes, short_bytes_of
from brimful.units import format_bytes
from brimful.values.job import Job
from brimful.values.plan import Plan
from brimful.values.task_words import is_per_sample, noun

MIN_SEQ_LEN = 128
"""A way out that shortens sequences below this helps nobody."""
LEAST_HELP = 0.25
"""Of what a plan lacks: what does not fit either, and leaves more of that, is not named."""
WHOLE_RATE = 100
"""From which on a rate is told in whole numbers."""
SURE = 0.05
"""Of a device's room: more nodes that are expected to lack so much are not searched."""
UNKNOWN_SHORT = 0.5
"""Bytes by which a GPU that does not exist is short: less than any that was counted, since that
there is none says more than by how much the rest is short."""


class WayOut(NamedTuple):
    """Something else that was tried.

    Attributes:
        words: What, and what came of it.
        short_bytes: By how many bytes it does not fit; 0 or less where it does.
        cost: Its predicted device-seconds per token; infinite: unknown.
        is_exact: Whether the same is learnt.
        solution: What was searched for it; None: nothing was.
        flags: As it is typed.
        peak: What it takes of what there is; empty: unknown.
        rate: How fast, in what its task counts; empty: unknown.
        unit: Of the rate: tokens or samples a second.
    """

    words: str
    short_bytes: float
    cost: float
    is_exact: bool = False
    solution: Solution | None = None
    flags: str = ""
    peak: str = ""
    rate: str = ""
    unit: str = ""

    @property
    def short(self) -> str:
        """What came of it, without why and what else there is to say."""
        return self.words.partition(" (")[0]

    @property
    def is_allowed(self) -> bool:
        """Whether it fits, and is for the job's owner to allow."""
        return self.short_bytes <= 0 and not self.is_exact


def ways_out(
    plan: Plan, find: Find, settle: Settle, *, simulated_bytes: int = 0
) -> Iterator[WayOut]:
    """Say what would make a plan fit that does not.

    What takes long, settling, is done in the order of what is yielded and no sooner: whoever needs
    three ways waits for three.

    ``find``: searches, or evaluates, by a bound: what it finds is no slower than what holds.
    ``settle``: decides whether what was found holds, and what does instead. ``simulated_bytes``:
    the peak of its tensors where no formula says it; 0: not known. Yields of shorter
    sequences, what the job's owner could allow, a larger GPU and more of the same: first those that
    leave what is learnt alone, then by device time per token; then those that do not fit either and
    lack less than the plan, the least short first.
    """
    larger, more = _larger_gpu(plan, simulated_bytes), _Way(_for_more(plan))
    batches = _Way(_larger_batches(plan, more))
    ways = [_shorter_sequences(plan, find), *_allowed(plan), larger, more, batches]
    misses: list[WayOut] = []
    waiting: list[tuple[bool, float, int, WayOut]] = []

    def go_on(number: int) -> None:
        found = ways[number].following(find)
        if found is not None:
            heappush(waiting, (not found.is_exact, found.cost, number, found))
        elif (missed := ways[number].missed) is not None:
            misses.append(missed)

    for number in range(len(ways)):
        go_on(number)
    while waiting:
        _, _, number, found = heappop(waiting)
        if ways[number].is_settled:
            yield found
        elif (held := ways[number].settled(settle)) is not None:
            heappush(waiting, (not held.is_exact, held.cost, number, held))
        else:
            go_on(number)
    lacks = math.inf if plan.estimate is None else short_bytes_of(plan.estimate)
    helpful = [way for way in misses if way.short_bytes <= (1 - LEAST_HELP) * lacks]
    yield from sorted(helpful, key=lambda way: way.short_bytes)


class _Option(NamedTuple):
    """Something to try.

    Attributes:
        flags: As it is typed.
        job: What is trained then.
        cluster: And on what.
        why: Why not the same is learnt; empty: it is.
        note: What else is said of it where it fits.
    """

    flags: str
    job: Job
    cluster: Cluster
    why: str = ""
    note: str = ""


class _Way:
    """Options in the order in which they are tried, of which the first that fits counts.

    Attributes:
        is_settled: Whether the option at hand is known to hold.
    """

    def __init__(
        self,
        options: Iterable[_Option],
        *,
        missed: WayOut | None = None,
        says_short: bool = False,
        need_bytes: int = 0,
    ) -> None:
        """Begin before the first option; ``says_short``: an option that does not fit is told.

        ``need_bytes``: of simulated tensors, for which options have room; 0: of none.
        """
        self.is_settled = False
        self._missed = missed
        self._need_bytes = math.inf
        self._simulated_bytes = need_bytes
        self._unknown: list[_Option] = []
        self._options = iter(options)
        self._says_short = says_short
        self._at: tuple[_Option, Tried] | None = None
        self._falling = _Falling()

    def following(self, find: Find) -> WayOut | None:
        """Return the next option that fits as it is found; None: no more do."""
        self._at = None
        for option in self._options:
            if self._falling.rules_out(option):
                continue
            try:
                tried = find(option.job, option.cluster)
            except InputError:
                continue  # it cannot run there
            except UnsupportedError:  # nobody knows whether it would
                self._unknown.append(option)
                continue
            need_bytes = tried.short_bytes + allocatable_bytes(option.cluster.device)
            self._need_bytes = min(self._need_bytes, need_bytes)
            if tried.short_bytes <= 0:
                self._at = option, tried
                return _told(option, tried)
            self._falling.learn(option, tried)
            self._miss(option, tried)
        return None

    @property
    def num_devices(self) -> float:
        """How many devices the option at hand has; infinite: none is."""
        return math.inf if self._at is None else self._at[0].cluster.num_devices

    @property
    def missed(self) -> WayOut | None:
        """What is said where none fits: of what could not be looked at, what has room.

        Nothing is said where that may fit and nothing was simulated.
        """
        is_tried = math.isfinite(self._need_bytes)
        least = self._need_bytes if is_tried else 0
        sizes = [allocatable_bytes(option.cluster.device) for option in self._unknown]
        if max(sizes, default=0) <= least:
            return self._missed
        return None if is_tried else _untried(self._unknown[0], self._simulated_bytes)

    def settled(self, settle: Settle) -> WayOut | None:
        """Return the option at hand as it holds; None: it does not."""
        assert self._at is not None
        option, tried = self._at
        tried = settle(tried)
        self.is_settled = tried.short_bytes <= 0
        if self.is_settled:
            return _told(option, tried)
        self._miss(option, tried)
        return None

    def _miss(self, option: _Option, tried: Tried) -> None:
        if self._says_short:
            self._missed = _told(option, tried)


class _Falling:
    """What more and more nodes lack: a + b / n at least, so that two of them tell of the rest.

    The peak is the largest of many such sums, of which no larger cluster has less than the last two
    lead to; what more nodes share in ways of their own may have a little less (``SURE``).
    """

    def __init__(self) -> None:
        """Begin without having seen any."""
        self._lacks: dict[int, int] = {}

    def learn(self, option: _Option, tried: Tried) -> None:
        """Note what a number of nodes lacks."""
        if option.cluster.num_nodes > 1 and not tried.is_bound:
            self._lacks[option.cluster.num_devices] = tried.short_bytes

    def rules_out(self, option: _Option) -> bool:
        """Whether so many nodes surely lack something, as fewer did."""
        seen, num, batch = self._lacks, option.cluster.num_devices, option.job.global_batch
        more = max(seen, default=0)
        evenly = (n for n in seen if n < more and (more % n == 0 or batch == num))
        few = max(evenly, default=0)
        if not few or num <= more:
            return False
        each = (seen[few] - seen[more]) / (1 / few - 1 / more)
        lacks = seen[more] - each * (1 / more - 1 / num)
        return lacks > SURE * tensor_limit_bytes(option.cluster)


def _untried(option: _Option, simulated_bytes: int) -> WayOut | None:
    """Say of what was not simulated that the tensors have room that were; None: none were.

    How many bytes live hangs on whose kernels run and not on how large a card is.
    """
    if not simulated_bytes:
        return None
    needs, room = map(format_bytes, (simulated_bytes, tensor_limit_bytes(option.cluster)))
    words = f"{option.flags} may fit: {needs} of tensors, simulated here, of {room} there"
    return WayOut(words, UNKNOWN_SHORT, math.inf, is_exact=True, flags=option.flags)


def _find(find: Find, job: Job, cluster: Cluster) -> Tried | None:
    try:
        return find(job, cluster)
    except (InputError, UnsupportedError):
        return None  # it cannot run there, or no formula covers it


def _told(option: _Option, tried: Tried) -> WayOut:
    """Put what was tried into words, and why not the same is learnt then."""
    flags = f"{option.flags} {tried.settings}".strip()
    seconds = None if tried.step_s is None else tried.step_s / option.job.tokens_per_step
    rate, unit = _rate(option.job, tried.step_s)
    if tried.short_bytes > 0:
        least = "at least " * tried.is_bound
        words = f"{option.flags} would still be short by {least}{format_bytes(tried.short_bytes)}"
    else:
        told = (tried.peak_words(), f"{rate} {unit}" if rate else "")
        words = ", ".join((f"{flags} would fit", *filter(None, told)))
    cost = math.inf if seconds is None else seconds * option.cluster.num_devices
    said = "".join(f" ({note})" for note in (option.why, option.note) if note)
    return WayOut(
        words + said,
        tried.short_bytes,
        cost,
        not option.why,
        tried.solution,
        flags,
        tried.peak_words(),
        rate,
        unit,
    )


def _rate(job: Job, step_s: float | None) -> tuple[str, str]:
    """Return how fast a step is and the unit of that: samples where a sample has one label."""
    unit = f"{noun(job.task)}/s"
    if not step_s:
        return "", unit
    rate = (job.global_batch if is_per_sample(job.task) else job.tokens_per_step) / step_s
    return (f"{rate:,.0f}" if rate >= WHOLE_RATE else f"{rate:.3g}"), unit


def _shorter_sequences(plan: Plan, find: Find) -> _Way:
    """Halve the sequences until they fit, if the shortest do."""
    if _is_hopeless(plan):
        return _Way([])
    halves = (plan.job.seq_len >> n for n in range(1, plan.job.seq_len.bit_length()))
    options = [
        _Option(
            f"--seq-len {seq_len}",
            msgspec.structs.replace(plan.job, seq_len=seq_len),
            plan.cluster,
            "it changes what is learnt",
        )
        for seq_len in halves
        if seq_len >= MIN_SEQ_LEN
    ]
    shortest = _find(find, options[-1].job, plan.cluster) if options else None
    return _Way(options if shortest is not None and shortest.short_bytes <= 0 else [])


def _is_hopeless(plan: Plan) -> bool:
    """Whether what stays does not fit even if all devices share it evenly: parameters and state."""
    return least_devices(plan) > plan.cluster.num_devices


def has_room(job: Job, cluster: Cluster, *, with_optimizer: bool = True) -> bool:
    """Whether parameters and optimizer state alone fit, if all devices share them evenly.

    True where nobody has listed the model's parameters. ``with_optimizer``: whether its state is
    on the devices.
    """
    try:
        stay = staying_bytes(job, cluster.device.kernels, with_optimizer=with_optimizer)
    except UnsupportedError:
        return True
    return stay <= tensor_limit_bytes(cluster) * cluster.num_devices


def least_devices(plan: Plan) -> int:
    """Return how many of a plan's devices have room for parameters and optimizer state alone.

    1 where nobody has listed the model's parameters.
    """
    try:
        stay = staying_bytes(plan.job, plan.cluster.device.kernels)
    except UnsupportedError:
        return 1
    return -(-stay // max(1, limit_bytes(plan)))


def _allowed(plan: Plan) -> Iterator[_Way]:
    """Try what the owner could allow."""
    both = pure_and_rounded(plan.job)
    for offer in (*offers(plan.job), *([both] if both else [])):
        why = f"{offer.price}: it changes what is learnt"
        option = _Option(offer.allow, offer.job, plan.cluster, why)
        yield _Way([option], says_short=True)


def _larger_gpu(plan: Plan, simulated_bytes: int) -> _Way:
    """Try as many of every GPU that has what the nearest plan needs alive, smallest first."""
    made = plan.estimate
    least = made.predicted_peak_allocated_bytes if made else simulated_bytes
    own, note = plan.cluster.device.name, "the smallest that does"
    clusters = (
        with_gpu(plan.cluster, device)
        for device in cards_for(plan.job, own)
        if allocatable_bytes(device) >= least and device.name != own
    )
    options = (
        _Option(f"--gpus {spelled(cluster)}", plan.job, cluster, note=note) for cluster in clusters
    )
    is_of_host = plan.estimate is not None and host_short_bytes(plan.estimate) > 0
    missed = None if is_of_host else WayOut(_no_gpu(plan), UNKNOWN_SHORT, math.inf)
    return _Way(options, missed=missed, need_bytes=simulated_bytes)


def _for_more(plan: Plan) -> Iterator[_Option]:
    """Yield a job on more of the same GPU: in a node, then in several."""
    for cluster in larger_clusters(plan.cluster):
        note = "the fewest nodes that do" if 1 < cluster.num_nodes <= EVERY_NODE else ""
        yield _Option(f"--gpus {spelled(cluster)}", plan.job, cluster, note=note)


def _larger_batches(plan: Plan, more: _Way) -> Iterator[_Option]:
    """Yield a job with a larger batch on more devices, where they cannot all share its own.

    ``more``: who found on how many it fits with its own batch: of as many it is not asked.
    """
    for cluster in larger_clusters(plan.cluster):
        if (num := cluster.num_devices) >= more.num_devices:
            return
        if plan.job.global_batch < num:
            larger = msgspec.structs.replace(plan.job, global_batch=num)
            flags = f"--gpus {spelled(cluster)} --global-batch {num}"
            why = "a larger batch changes what is learnt"
            yield _Option(flags, larger, cluster, why)


def _no_gpu(plan: Plan) -> str:
    need = "it needs more devices"
    if plan.estimate is not None:
        total = parameter_count(plan.job.model).total
        need = f"{total / 1e9:.1f} B parameters need more devices"
    num = plan.cluster.num_devices
    who = "no single known GPU holds" if num == 1 else f"no {num} of any known GPU hold"
    return f"{who} it: {need}"
