"""Seconds of collectives, by algorithm, message size and link.

A collective over n ranks of which r share a node, m nodes in all. Rates are those of one GPU: its
link within the node, its share of the node's adapters between nodes. What a ring moves follows
NCCL's own definition of bus bandwidth (https://github.com/NVIDIA/nccl-tests/blob/master/doc/
PERFORMANCE.md). A node is what the fastest link joins, which can be a rack of machines. Owns no
rate: those stand in ``hardware/links.py``.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from brimful.cost.trajectory import Array
from brimful.hardware.cluster import Cluster
from brimful.hardware.links import Link, link_of, network_of, num_linked

Collective = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send"]
OVERLAP_SLOWDOWN = 0.19
"""How much slower kernels run while a collective does: 18.9 % on average, 40 % at most
(arXiv:2507.03114, abstract)."""


class Way(NamedTuple):
    """What messages reach over a link, as numbers.

    Attributes:
        bytes_per_s: Of one GPU in one direction, in large messages; NaN: unknown.
        latency_s: Of a small message; NaN: unknown.
    """

    bytes_per_s: float
    latency_s: float


class Group(NamedTuple):
    """Who takes part: [groups] each, or one number.

    Attributes:
        ranks: n, all of them.
        in_node: r, of one node.
        nodes: m.
    """

    ranks: Array
    in_node: Array
    nodes: Array


def collective_seconds(
    kind: Collective,
    num_bytes: Array | float,
    ranks: Array | float,
    cluster: Cluster,
    stride: Array | int = 1,
) -> Array:
    """Predict the time of one collective that has the links to itself and its sister groups.

    Sister groups (``stride`` of them interleave in a node) run at the same time, each on its own
    GPUs' links and adapters.

    ``num_bytes``: of the whole tensor as one rank holds it: what is reduced, what an all-gather
    ends with, what a reduce-scatter begins with, what one rank sends. ``ranks``: size of the group;
    1 takes no time. ``stride``: distance between neighbouring ranks of the group; 1: next to each
    other. Returns seconds, in the shape that the arguments broadcast to; NaN where a link is
    unknown.
    """
    group = group_of(ranks, stride, num_linked(cluster))
    node, network = _way(link_of(cluster)), _way(network_of(cluster))
    return _SECONDS[kind](np.asarray(num_bytes, dtype=np.float64), group, node, network)


def group_of(ranks: Array | float, stride: Array | int, devices_per_node: int) -> Group:
    """Count who shares a node, where neighbours in the group are ``stride`` devices apart."""
    total = np.asarray(ranks, dtype=np.float64)
    in_node = np.clip(np.floor(devices_per_node / np.asarray(stride)), 1, total)
    return Group(total, in_node, np.ceil(total / in_node))


def overlapped_seconds(compute_s: Array, comm_s: Array) -> Array:
    """Return the time of kernels and collectives side by side.

    While a collective runs, kernels advance at 1 / (1 + s) of their pace, s being
    ``OVERLAP_SLOWDOWN``: compute + comm * s / (1 + s), and at least the collective itself.
    Ignores that a collective is slowed by kernels too.
    """
    slowed = comm_s * (OVERLAP_SLOWDOWN / (1 + OVERLAP_SLOWDOWN))
    return np.maximum(comm_s, compute_s + slowed)


def _way(link: Link | None) -> Way:
    if link is None or link.bytes_per_s is None:
        return Way(np.nan, np.nan)
    return Way(link.bytes_per_s * link.efficiency, link.latency_s)


def _bus(group: Group, node: Way, network: Way) -> Array:
    """Return what flows past every rank of a ring in bytes/s.

    A ring enters and leaves a node once per channel, and NCCL gives each GPU's adapter its own
    channels: r adapters carry it between nodes, one GPU's link inside.
    """
    inside = np.where(group.in_node > 1, node.bytes_per_s, np.inf)
    between = np.where(group.nodes > 1, group.in_node * network.bytes_per_s, np.inf)
    return np.minimum(inside, between)


def _once_around(group: Group, node: Way, network: Way) -> Array:
    """Return the latency of the n - 1 hops of a ring, m - 1 of which leave a node."""
    inside = np.where(group.in_node > 1, (group.ranks - group.nodes) * node.latency_s, 0.0)
    return inside + np.where(group.nodes > 1, (group.nodes - 1) * network.latency_s, 0.0)


def _gather(num_bytes: Array, group: Group, node: Way, network: Way) -> Array:
    """All-gather and reduce-scatter by a ring: (n - 1) / n of the bytes pass every rank."""
    share = (group.ranks - 1) / group.ranks
    moved = num_bytes * share / _bus(group, node, network)
    return moved + _once_around(group, node, network)


def _reduce_by_tree(num_bytes: Array, group: Group, node: Way, network: Way) -> Array:
    """All-reduce by two binary trees over nodes and a chain inside: up and down once.

    2 S / bus + 2 (log2 m hops between nodes + r - 1 hops inside)
    (https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/).
    """
    inside = np.where(group.in_node > 1, (group.in_node - 1) * node.latency_s, 0.0)
    hops = np.ceil(np.log2(group.nodes))
    between = np.where(group.nodes > 1, hops * network.latency_s, 0.0)
    return 2 * (num_bytes / _bus(group, node, network) + inside + between)


def _reduce(num_bytes: Array, group: Group, node: Way, network: Way) -> Array:
    """All-reduce by the faster of ring (reduce-scatter, then all-gather) and trees, as NCCL."""
    ring = 2 * _gather(num_bytes, group, node, network)
    return np.minimum(ring, _reduce_by_tree(num_bytes, group, node, network))


def _exchange(num_bytes: Array, group: Group, node: Way, network: Way) -> Array:
    """All-to-all: 1 / n of the bytes go to each rank, those of the node by its link.

    Both ways at once, so that the slower decides. Ignores what each further peer costs.
    """
    part = num_bytes / group.ranks
    inside = part * (group.in_node - 1) / node.bytes_per_s + node.latency_s
    between = part * (group.ranks - group.in_node) / network.bytes_per_s + network.latency_s
    return np.maximum(
        np.where(group.in_node > 1, inside, 0.0), np.where(group.nodes > 1, between, 0.0)
    )


def _send(num_bytes: Array, group: Group, node: Way, network: Way) -> Array:
    """Send to the next rank: where the group spans nodes, the hop that leaves one is meant."""
    inside = num_bytes / node.bytes_per_s + node.latency_s
    between = num_bytes / network.bytes_per_s + network.latency_s
    there = np.where(group.ranks > 1, inside, 0.0)
    return np.where(group.nodes > 1, between, there)


_SECONDS: dict[Collective, Callable[[Array, Group, Way, Way], Array]] = {
    "all-reduce": _reduce,
    "all-gather": _gather,
    "reduce-scatter": _gather,
    "all-to-all": _exchange,
    "send": _send,
}
