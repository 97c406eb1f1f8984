"""A plan beside what somebody compares it with: nothing offloaded, one node."""

from collections.abc import Sequence

from brimful.hardware.cluster import Cluster
from brimful.search.solve import Solution
from brimful.show.predicted import host_words
from brimful.show.run import rate_words
from brimful.show.summary import Fact
from brimful.units import format_bytes


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


def away_fact(away: Solution) -> Fact:
    """Say how fast a plan is that keeps its optimizer on the host, and what that has to have.

    Args:
        away: What was found so.
    """
    plan, step_s = away.plan, away.record.rows[0].step_s
    assert plan.estimate is not None, "asked before"
    assert plan.estimate.host is not None, "what offloads has one"
    assert step_s, "asked before"
    needs = host_words(plan.estimate.host)
    return Fact(
        "faster",
        f"--offload {plan.strategy.offload} {rate_words(plan.job, step_s)}, predicted, where each "
        f"host has {needs}; --host-memory searches both",
    )


def offload_facts(
    cluster: Cluster, peaks: Sequence[int], held: int, *, fits: bool
) -> tuple[Fact, ...]:
    """Lay a run that offloads beside the same run that does not.

    Args:
        cluster: On what.
        peaks: Bytes of tensors of the run that offloads, and of the same with all on the GPU.
        held: What a node's host holds of all its devices.
        fits: Whether the second holds.
    """
    peak, other = peaks
    ram = f" of {format_bytes(cluster.host_ram_bytes)}" if cluster.host_ram_bytes else ""
    if cluster.host_ram_bytes and held > cluster.host_ram_bytes:
        ram += f", short by {format_bytes(held - cluster.host_ram_bytes)}"
    words = (
        f"{format_bytes(peak)} of tensors with it, {format_bytes(other)} without "
        f"({'which fits too' if fits else 'which does not fit'}); on the host "
        f"{format_bytes(held)}{ram}"
    )
    return (Fact("offload", words),)
