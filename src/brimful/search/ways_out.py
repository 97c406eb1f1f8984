"""What would make a job fit that does not: each way is searched anew, none is advice by rote."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from brimful.cost.estimate import allocatable_bytes, estimate_or_none
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster, Device, spelled
from brimful.hardware.datasheets import datasheets
from brimful.hardware.gpus import gpus
from brimful.hardware.links import assumed_network, node_links
from brimful.job import Job
from brimful.models.config import parameter_count
from brimful.plan import Plan
from brimful.search.gains import Search
from brimful.search.holding import hold
from brimful.search.offers import offers
from brimful.search.solve import Solution, solve
from brimful.strategy import Strategy
from brimful.units import format_bytes

IN_A_NODE = (2, 4, 8)
"""Devices of one node that are tried."""
NODES = (2, 4, 8, 16, 32)
"""Whole nodes that are tried behind those."""
MIN_SEQ_LEN = 128
"""A way out that shortens sequences below this helps nobody."""
UNKNOWN_SHORT = 0.5
"""Bytes by which a GPU that does not exist is short: less than any that was counted, since that
there is none says more than by how much the rest is short."""


class Tried(NamedTuple):
    """The best of a job on a cluster.

    Attributes:
        short_bytes: By how many bytes it does not fit; 0 or less where it does.
        step_s: Its predicted seconds per step; None: unknown.
        solution: What was searched; None: the plan's own strategy was evaluated.
    """

    short_bytes: int
    step_s: float | None
    solution: Solution | None


Find = Callable[[Job, Cluster], Tried]
"""Returns the best of a job on a cluster. Raises UnsupportedError where it cannot tell, InputError
where the job cannot run there."""
Shortfall = Callable[[Job, Cluster, Strategy], int]
"""Returns by how many bytes a strategy does not fit; 0 or less where it does."""


class WayOut(NamedTuple):
    """Something else that was tried.

    Attributes:
        words: What, and what came of it.
        short_bytes: By how many bytes it does not fit; 0 or less where it does.
        cost: Its predicted device-seconds per token; infinite: unknown.
        is_exact: Whether the same is learnt.
        solution: What was searched for it; None: nothing was.
    """

    words: str
    short_bytes: float
    cost: float
    is_exact: bool = False
    solution: Solution | None = None


def searched_anew(search: Search) -> Find:
    """Search every way as the plan was searched for."""

    def find(job: Job, cluster: Cluster) -> Tried:
        found = hold(
            solve(
                job,
                cluster,
                search.pins,
                attention=search.attention,
                objective=search.objective,
                also=search.also,
            )
        ).solution
        made = found.plan.estimate
        assert made is not None, "what is solved has a formula"
        short = 0 if made.fits else made.predicted_peak_allocated_bytes - made.usable_bytes
        reserved = made.predicted_reserved
        if reserved is not None and reserved.word != "fits":
            short = max(short, reserved.excess_bytes)
        return Tried(short, made.predicted_step_s, found)

    return find


def same_strategy(plan: Plan, shortfall: Shortfall) -> Find:
    """Evaluate the plan's own strategy on every way, which takes a simulation each."""

    def find(job: Job, cluster: Cluster) -> Tried:
        if cluster.num_devices != plan.cluster.num_devices:
            raise UnsupportedError("the plan's strategy is for as many devices as it has")
        if job.method != plan.job.method or job.optimizer != plan.job.optimizer:
            raise UnsupportedError("a simulation for each would take too long")
        made = estimate_or_none(job, cluster, plan.strategy)
        step_s = None if made is None else made.predicted_step_s
        return Tried(shortfall(job, cluster, plan.strategy), step_s, None)

    return find


def either(first: Find, second: Find) -> Find:
    """Find by one way, and where it cannot tell by another."""

    def find(job: Job, cluster: Cluster) -> Tried:
        try:
            return first(job, cluster)
        except UnsupportedError:
            return second(job, cluster)

    return find


def ways_out(plan: Plan, find: Find) -> tuple[WayOut, ...]:
    """Say what would make a plan fit that does not.

    Args:
        plan: The nearest plan.
        find: Searches, or evaluates.

    Returns:
        Of shorter sequences, what the job's owner could allow, a larger GPU and more of the same:
        first those that leave what is learnt alone, then by device time per token; then those that
        do not fit either, the least short first.
    """
    tried = [
        _shorter_sequences(plan, find),
        *_allowed(plan, find),
        _larger_gpu(plan, find),
        _more_gpus(plan, find),
    ]
    found = [way for way in tried if way is not None]
    fitting = sorted((way for way in found if way.short_bytes <= 0), key=_by_price)
    misses = sorted((way for way in found if way.short_bytes > 0), key=lambda w: w.short_bytes)
    return (*fitting, *misses)


def _by_price(way: WayOut) -> tuple[bool, float]:
    return not way.is_exact, way.cost


def _find(find: Find, job: Job, cluster: Cluster) -> Tried | None:
    try:
        return find(job, cluster)
    except (InputError, UnsupportedError):
        return None  # it cannot run there, or no formula covers it


def _way(flags: str, job: Job, cluster: Cluster, tried: Tried, *, why: str = "") -> WayOut:
    """Put what was tried into words, and why not the same is learnt then."""
    seconds = None if tried.step_s is None else tried.step_s / job.tokens_per_step
    if tried.short_bytes > 0:
        words = f"{flags} would still be short by {format_bytes(tried.short_bytes)}"
    else:
        rate = f", {1 / seconds:,.0f} tokens/s" if seconds else ""
        words = f"{flags} would fit{rate}"
    cost = math.inf if seconds is None else seconds * cluster.num_devices
    return WayOut(
        words + (f" ({why})" if why else ""), tried.short_bytes, cost, not why, tried.solution
    )


def _shorter_sequences(plan: Plan, find: Find) -> WayOut | None:
    """Halve the sequences until they fit, if the shortest do."""
    halves = (plan.job.seq_len >> n for n in range(1, plan.job.seq_len.bit_length()))
    lengths = [seq_len for seq_len in halves if seq_len >= MIN_SEQ_LEN]

    def way(seq_len: int) -> WayOut | None:
        job = msgspec.structs.replace(plan.job, seq_len=seq_len)
        tried = _find(find, job, plan.cluster)
        if tried is None or tried.short_bytes > 0:
            return None
        why = "it changes what is learnt"
        return _way(f"--seq-len {seq_len}", job, plan.cluster, tried, why=why)

    shortest = way(lengths[-1]) if lengths else None
    if shortest is None:
        return None
    return next(filter(None, map(way, lengths[:-1])), shortest)


def _allowed(plan: Plan, find: Find) -> Iterator[WayOut]:
    """Try what the owner could allow."""
    for offer in offers(plan.job):
        tried = _find(find, offer.job, plan.cluster)
        if tried is not None:
            why = f"{offer.price}: it changes what is learnt"
            yield _way(offer.allow, offer.job, plan.cluster, tried, why=why)


def _larger_gpu(plan: Plan, find: Find) -> WayOut:
    """Try as many of every GPU that has what the nearest plan needs alive, smallest first."""
    least = plan.estimate.predicted_peak_allocated_bytes if plan.estimate else 0
    for device in sorted(gpus().values(), key=lambda device: device.usable_bytes):
        if allocatable_bytes(device) < least or _emulates(plan.job, device):
            continue
        cluster = _with_gpu(plan.cluster, device)
        tried = _find(find, plan.job, cluster)
        if tried is not None and tried.short_bytes <= 0:
            way = _way(f"--gpus {spelled(cluster)}", plan.job, cluster, tried)
            return way._replace(words=f"{way.words} (the smallest known GPU on which it does)")
    return WayOut(_no_gpu(plan), UNKNOWN_SHORT, math.inf)


def _more_gpus(plan: Plan, find: Find) -> WayOut | None:
    """Try more of the same GPU: in a node, then in several."""
    for cluster in _larger_clusters(plan.cluster):
        tried = _find(find, plan.job, cluster)
        if tried is not None and tried.short_bytes <= 0:
            return _way(f"--gpus {spelled(cluster)}", plan.job, cluster, tried)
    return None


def _larger_clusters(cluster: Cluster) -> Iterator[Cluster]:
    """Yield more devices of a cluster, by their fastest link and the network they have."""
    sheet = datasheets().get(cluster.device.name)
    link = node_links(sheet)[0].name if sheet else ""
    network = cluster.network or assumed_network(cluster.device.name)
    whole = max(cluster.devices_per_node, IN_A_NODE[-1])
    counts = [(1, number) for number in IN_A_NODE] + [(nodes, whole) for nodes in NODES]
    for nodes, each in counts:
        if nodes * each > cluster.num_devices and each >= cluster.devices_per_node:
            yield msgspec.structs.replace(
                cluster,
                num_devices=nodes * each,
                num_nodes=nodes,
                devices_per_node=each,
                link=link,
                network=network if nodes > 1 else "",
            )


def _with_gpu(cluster: Cluster, device: Device) -> Cluster:
    """Return a cluster of as many devices of another kind, by the fastest link that those have."""
    link = node_links(datasheets()[device.name])[0].name if cluster.devices_per_node > 1 else ""
    return msgspec.structs.replace(
        cluster,
        name=device.name,
        device=device,
        host_ram_bytes=0,
        link=link,
        memory_limit_bytes=0,
    )


def _no_gpu(plan: Plan) -> str:
    need = "it needs more devices"
    if plan.estimate is not None:
        total = parameter_count(plan.job.model).total
        need = f"{total / 1e9:.1f} B parameters need more devices"
    num = plan.cluster.num_devices
    who = "no single known GPU holds" if num == 1 else f"no {num} of any known GPU hold"
    return f"{who} it: {need}"


def _emulates(job: Job, device: Device) -> bool:
    """Whether a GPU has no units for the recipe's type: it would fit, and crawl."""
    return job.precision.startswith("bf16") and not device.matrix_flops_per_s.bf16
