"""A plan beside what somebody compares it with: another recipe, nothing offloaded, one node."""

from collections.abc import Sequence

from brimful.hardware.cluster import Cluster
from brimful.hardware.datasheets import datasheets
from brimful.job import Job, Precision
from brimful.plan import Estimate
from brimful.search.solve import Solution
from brimful.show.run import rate_words
from brimful.show.summary import Fact
from brimful.units import format_bytes

LEAST_DIFFERENCE = 0.01
"""Of the peak: below this share two recipes take as much."""


def against_facts(found: Solution, job: Job, made: Estimate) -> tuple[Fact, ...]:
    """Lay a plan's recipe beside another one with the same settings: bytes and seconds.

    Args:
        found: The plan.
        job: The same in another recipe.
        made: What is predicted of that.
    """
    best, other = found.record.rows[0], made.predicted_peak_allocated_bytes
    less = other - best.peak_bytes
    ours, theirs = found.plan.job.precision, job.precision
    memory = f"{ours} takes {format_bytes(abs(less))} {'less' if less > 0 else 'more'}"
    if abs(less) < LEAST_DIFFERENCE * other:
        memory = f"{ours} takes as much"
    words = f"{theirs} with these settings: {format_bytes(other)} of tensors"
    if made.predicted_step_s is not None:
        words += f", {rate_words(job, made.predicted_step_s)}"
        if best.step_s is not None:
            memory += f" and is {made.predicted_step_s / best.step_s:.2f} x as fast"
    return (Fact("against", f"{words}; so {memory}{_rates(found, theirs)}"),)


def _rates(found: Solution, other: Precision) -> str:
    """Say of a recipe whose time is unknown what its products could gain at most."""
    ours = found.plan.job.precision
    sheet = datasheets().get(found.plan.cluster.device.name)
    if found.record.rows[0].step_s is not None or sheet is None:
        return ""
    fast, slow = (
        getattr(sheet.matrix_flops_per_s, each.partition("-")[0], None) for each in (ours, other)
    )
    if not fast or not slow:
        return ""
    return (
        f"; its speed is not known here: by the data sheet its matrix products, and nothing else, "
        f"are at most {fast / slow:.2g} x as fast"
    )


def alone_fact(found: Solution, alone: Solution) -> Fact:
    """Lay a plan on several nodes beside the best on one of them.

    Args:
        found: The plan.
        alone: What was found for one node.
    """
    num, best = found.plan.cluster.num_nodes, alone.record.rows[0]
    all_s = found.record.rows[0].step_s
    if not best.fits:
        return Fact("one node", "does not hold it")
    if not best.step_s or not all_s:
        return Fact("one node", "holds it, at an unknown speed")
    times = best.step_s / all_s
    worth = f"{num} are {times:.2g} x as fast" if times > 1 else f"{num} are no faster"
    return Fact("one node", f"alone {rate_words(alone.plan.job, best.step_s)}, so {worth}")


def offload_facts(
    cluster: Cluster, peaks: Sequence[int], held: int, *, fits: bool
) -> tuple[Fact, ...]:
    """Lay a run that offloads beside the same run that does not.

    Args:
        cluster: On what.
        peaks: Bytes of tensors of the run that offloads, and of the same with all on the GPU.
        held: What one device's part of the host holds.
        fits: Whether the second holds.
    """
    peak, other = peaks
    held *= cluster.devices_per_node
    ram = f" of {format_bytes(cluster.host_ram_bytes)}" if cluster.host_ram_bytes else ""
    if cluster.host_ram_bytes and held > cluster.host_ram_bytes:
        ram += f", short by {format_bytes(held - cluster.host_ram_bytes)}"
    words = (
        f"{format_bytes(peak)} of tensors with it, {format_bytes(other)} without "
        f"({'which fits too' if fits else 'which does not fit'}); on the host "
        f"{format_bytes(held)}{ram}"
    )
    return (Fact("offload", words),)
