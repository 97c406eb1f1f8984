"""What lies between GPUs, as values: the link of a node, the network between nodes.

Rates are peaks of data sheets. Latencies are assumed, and so are most shares of a peak that
messages reach; each source says so. Owns ``data/links``; the links of a GPU stand in its own
datasheet.
"""

from functools import cache
from importlib import resources
from typing import Literal

import msgspec

from brimful.errors import InputError, unknown_name
from brimful.hardware.cluster import Cluster
from brimful.hardware.datasheets import Datasheet, SheetLink, cited, datasheets

_FILE = "data/links/links.json"
NodeLink = Literal["nvlink", "xgmi", "pcie"]
Networking = Literal["infiniband", "roce", "efa", "slingshot", "ethernet"]


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A way between GPUs.

    Attributes:
        name: Its key: ``nvlink-4``, ``pcie-5x16``, ``ib-ndr-400``.
        kind: What it is.
        bytes_per_s: Of one GPU in one direction, to all others together; None: unknown.
        latency_s: Assumed time of a small message.
        efficiency: Share of ``bytes_per_s`` that large messages reach, 0 to 1.
        source: Where rate and efficiency were taken from, and that the latency is assumed.
    """

    name: str
    kind: NodeLink | Networking
    bytes_per_s: float | None
    latency_s: float
    efficiency: float
    source: str

    @property
    def total_bytes_per_s(self) -> float | None:
        """Both directions together, as makers advertise it."""
        return None if self.bytes_per_s is None else 2 * self.bytes_per_s


class _Latency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    latency_s: float
    source: str


class _Efficiency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    share: float
    source: str


class _Network(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of the file; ``bytes_per_s`` is of one adapter in one direction."""

    kind: Networking
    bytes_per_s: float
    shared_by_node: bool
    latency_s: float
    source: str


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    latencies: dict[NodeLink, _Latency]
    efficiencies: dict[NodeLink | Networking, _Efficiency]
    networks: dict[str, _Network]
    assumed: dict[str, str]
    else_assumed: str


@cache
def _table() -> _Table:
    data = resources.files("brimful").joinpath(_FILE).read_bytes()
    return msgspec.json.decode(data, type=_Table)


def node_links(sheet: Datasheet) -> tuple[Link, ...]:
    """Return the ways from a GPU to the others of its node, fastest first."""
    return tuple(_node_link(sheet, link) for link in sheet.links)


def _node_link(sheet: Datasheet, link: SheetLink) -> Link:
    latency, reached = _table().latencies[link.kind], _table().efficiencies[link.kind]
    lanes = f"x{link.width}" if link.kind == "pcie" else ""
    return Link(
        name=f"{link.kind}-{link.generation}{lanes}",
        kind=link.kind,
        bytes_per_s=link.bytes_per_s,
        latency_s=latency.latency_s,
        efficiency=reached.share,
        source=f"{cited(sheet, f'links.{link.kind}')}; latency {latency.source}; "
        f"{_reached_words(reached)}",
    )


def _reached_words(reached: _Efficiency) -> str:
    return f"{reached.share:.0%} of the peak reached: {reached.source}"


def network_names() -> tuple[str, ...]:
    """List the networks that can be named."""
    return tuple(_table().networks)


def network(name: str, *, devices_per_node: int) -> Link:
    """Return a network as one GPU sees it.

    ``name``: one of ``network_names``. ``devices_per_node``: GPUs that share an adapter where the
    node has one for all. Raises UnknownNameError: no such network.
    """
    if name not in _table().networks:
        raise unknown_name("network", name, network_names())
    if devices_per_node < 1:
        raise InputError(f"devices_per_node={devices_per_node} share {name}; give 1 or more")
    row = _table().networks[name]
    reached = _table().efficiencies[row.kind]
    share = devices_per_node if row.shared_by_node else 1
    return Link(
        name=name,
        kind=row.kind,
        bytes_per_s=row.bytes_per_s / share,
        latency_s=row.latency_s,
        efficiency=reached.share,
        source=f"{row.source}; {_reached_words(reached)}",
    )


def link_of(cluster: Cluster) -> Link | None:
    """Return what lies between the devices of a node; None for one device or where unknown."""
    links = _links_of(cluster.device.name)
    return next((link for link in links if link.name == cluster.link), None)


def num_linked(cluster: Cluster) -> int:
    """Return how many devices a cluster's fastest link joins: those of a node, or of a rack."""
    each, sheet = cluster.devices_per_node, datasheets().get(cluster.device.name)
    if sheet is None or cluster.link != _links_of(cluster.device.name)[0].name:
        return each
    return max(each, min(sheet.linked, cluster.num_devices))


@cache
def _links_of(gpu: str) -> tuple[Link, ...]:
    sheet = datasheets().get(gpu)
    return () if sheet is None else node_links(sheet)


def assumed_network(gpu: str) -> str:
    """Name the network of the maker's own systems with a GPU; empty where there are none.

    Source: ``assumed`` in ``data/links/links.json``.
    """
    return _table().assumed.get(gpu, "")


def network_between(gpu: str) -> str:
    """Name what is assumed between nodes that somebody has: else that of plain servers."""
    return assumed_network(gpu) or _table().else_assumed


def network_of(cluster: Cluster) -> Link | None:
    """Return what lies between a cluster's nodes; None for one node or where it was not said."""
    if not cluster.network:
        return None
    return network(cluster.network, devices_per_node=cluster.devices_per_node)
