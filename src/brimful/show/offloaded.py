"""What offloading saves, and what it takes of the host, as a fact."""

from brimful.hardware.cluster import Cluster
from brimful.rungs import Simulation
from brimful.show.summary import Fact
from brimful.units import format_bytes


def offload_facts(cluster: Cluster, away: Simulation, here: Simulation) -> tuple[Fact, ...]:
    """Lay a run that offloads beside the same run that does not.

    Args:
        cluster: On what.
        away: The run that offloads, simulated.
        here: The same with everything on the GPU.
    """
    peak, other = (each.simulated_peak_allocated_bytes for each in (away, here))
    held = away.simulated_host_block_bytes or away.simulated_peak_host_bytes
    held *= cluster.devices_per_node
    ram = f" of {format_bytes(cluster.host_ram_bytes)}" if cluster.host_ram_bytes else ""
    if cluster.host_ram_bytes and held > cluster.host_ram_bytes:
        ram += f", short by {format_bytes(held - cluster.host_ram_bytes)}"
    fits = here.reserved is not None and here.reserved.word == "fits"
    words = (
        f"{format_bytes(peak)} of tensors with it, {format_bytes(other)} without "
        f"({'which fits too' if fits else 'which does not fit'}); on the host "
        f"{format_bytes(held)}{ram}"
    )
    return (Fact("offload", words),)
