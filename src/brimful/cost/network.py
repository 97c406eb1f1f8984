"""What the network between nodes takes of a step, and how long the same step takes by another."""

import msgspec

from brimful.cost.estimate import estimate_or_none
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster
from brimful.hardware.datasheets import datasheets
from brimful.hardware.links import assumed_network, network, network_of, node_links
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.values.job import Job
from brimful.values.strategy import Strategy

SLOW, FAST = "ethernet-100", "ib-ndr-400"
"""What many have, and what training on many nodes is built with: beside these others are laid."""


def waiting_share(job: Job, cluster: Cluster, strategy: Strategy, step_s: float) -> float | None:
    """Return the share of a step that would go if one node's link joined all devices.

    None: nobody knows, as one node has no link, or no formula covers the job, or a host updates,
    which has other devices beside it there.
    """
    if strategy.offload != NO_OFFLOAD:
        return None
    sheet = datasheets().get(cluster.device.name)
    links = () if sheet is None else node_links(sheet)
    link = cluster.link or (links[0].name if links else "")
    if not link:
        return None
    num = cluster.num_devices
    together = msgspec.structs.replace(
        cluster, num_nodes=1, devices_per_node=num, network="", link=link
    )
    least_s = _seconds(job, together, strategy)
    return None if least_s is None else max(0.0, 1 - least_s / step_s)


def times_by(
    job: Job, cluster: Cluster, strategy: Strategy, step_s: float, other: str
) -> float | None:
    """Return how many times as long the same step takes by another network; None: unknown."""
    there = msgspec.structs.replace(cluster, network=other)
    other_s = _seconds(job, there, strategy)
    return None if other_s is None else other_s / step_s


def yardstick(cluster: Cluster) -> tuple[str, str]:
    """Return what networks lie beside a cluster's own: a slower and a faster one; empty: none is.

    The faster one is that of the maker's own systems, where these have one.
    """
    own = network_of(cluster)
    if own is None or own.bytes_per_s is None:
        return "", ""
    reached = own.bytes_per_s * own.efficiency
    fast = assumed_network(cluster.device.name) or FAST
    slower, faster = (_reached(name, cluster) for name in (SLOW, fast))
    return SLOW if slower < reached else "", fast if faster > reached else ""


def _reached(name: str, cluster: Cluster) -> float:
    link = network(name, devices_per_node=cluster.devices_per_node)
    return (link.bytes_per_s or 0.0) * link.efficiency


def _seconds(job: Job, cluster: Cluster, strategy: Strategy) -> float | None:
    try:
        made = estimate_or_none(job, cluster, strategy)
    except (InputError, UnsupportedError):
        return None
    return None if made is None else made.predicted_step_s
