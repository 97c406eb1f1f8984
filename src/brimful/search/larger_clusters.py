"""Clusters that have more: more of the same GPU, or as many of another."""

from collections.abc import Iterator

import msgspec

from brimful.cost.money import shipped_prices
from brimful.hardware.cluster import Cluster, Device
from brimful.hardware.datasheets import datasheets
from brimful.hardware.devices import cards
from brimful.hardware.gpus import LOCAL
from brimful.hardware.links import assumed_network, node_links
from brimful.techniques.kernel_support import Place, why_emulated
from brimful.units import GIB, Share
from brimful.values.job import Job

IN_A_NODE = (2, 4, 8)
"""Devices of one node that are tried."""
EVERY_NODE = 8
"""Up to so many nodes none is left out."""
NODES = (*range(2, EVERY_NODE + 1), 12, 16, 24, 32)
"""Whole nodes that are tried behind those."""
ALIKE_BYTES = 4 * GIB
"""Cards in a step of so much are told as equally large."""


def larger_clusters(cluster: Cluster) -> Iterator[Cluster]:
    """Yield more devices of a cluster, by their fastest link and the network they have.

    Of this machine there is one.
    """
    sheet = datasheets().get(cluster.device.name)
    if sheet is None:
        return
    link = node_links(sheet)[0].name
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


def with_gpu(cluster: Cluster, device: Device) -> Cluster:
    """Return a cluster of as many devices of another kind, by the fastest link that those have.

    A host's memory that was given stays; that of this machine is not theirs. A limit was of the
    kind, but for what something else takes beside the job.
    """
    left = Share(1 - cluster.beside_share).of(device.usable_bytes)
    is_here = cluster.name == LOCAL
    link = node_links(datasheets()[device.name])[0].name if cluster.devices_per_node > 1 else ""
    return msgspec.structs.replace(
        cluster,
        name=device.name,
        device=device,
        host_ram_bytes=0 if is_here else cluster.host_ram_bytes,
        link=link,
        memory_limit_bytes=left if cluster.beside_share else 0,
    )


def cards_for(job: Job, instead_of: str = "") -> Iterator[Device]:
    """Yield the cards that have units for a recipe's type (on others it would fit, and crawl).

    ``instead_of``: a GPU, whose maker's they are; empty: NVIDIA's.
    """
    for device in smallest_first(instead_of):
        place = Place(device.kernels, device.capability)
        is_known = device.matrix_flops_per_s.bf16 or not job.precision.startswith("bf16")
        if is_known and why_emulated(job.precision, place) is None:
            yield device


def smallest_first(instead_of: str = "") -> list[Device]:
    """List the cards, the smallest first; of those about as large, what somebody rents out."""
    rented = shipped_prices().gpus
    return sorted(
        cards(instead_of), key=lambda d: (d.usable_bytes // ALIKE_BYTES, d.name not in rented)
    )
