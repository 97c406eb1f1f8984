"""A plan beside what somebody compares it with: nothing offloaded, one node."""

from collections.abc import Sequence

from brimful.cost.money import Prices, cost_of
from brimful.hardware.cluster import Cluster
from brimful.search.cheapest import surely_fits
from brimful.search.solve import Solution
from brimful.show.predicted import host_words, replayed_meter
from brimful.show.run import DAY_H, rate_words
from brimful.show.settings import differing_words
from brimful.show.summary import Fact
from brimful.units import format_bytes, format_days, format_money
from brimful.values.plan import Plan, PredictedReserved
from brimful.values.results import Reserved

MATTERS = 1.05
"""Times as long, from which another network is told."""


def counts_fact(counts: Sequence[Plan], prices: Prices) -> Fact:
    """Say what a run takes on other numbers of devices, in time and money."""
    words = []
    for plan in counts:
        made, num = plan.estimate, plan.cluster.num_devices
        step_s = None if made is None else made.predicted_step_s
        cost = cost_of(plan.job, plan.cluster, step_s, prices)
        if made is None or cost.hours is None or not surely_fits(made):
            words.append(f"{num}: not sure to fit")
            continue
        usd = "" if cost.usd is None else f" and {format_money(cost.usd)}"
        words.append(f"{num}: {format_days(cost.hours / DAY_H)}{usd}")
    return Fact("by count", "; ".join(words))


NOT_ALONE = Fact("one node", "does not hold it")


def alone_fact(found: Solution, alone: Solution) -> Fact:
    """Lay a plan on several nodes beside the best on one of them."""
    num, best = found.plan.cluster.num_nodes, alone.record.rows[0]
    all_s = found.record.rows[0].step_s
    if not best.fits:
        return NOT_ALONE
    if not best.step_s or not all_s:
        return Fact("one node", "holds it, at an unknown speed")
    times = best.step_s / all_s
    worth = f"{num} are {times:.2g} x as fast" if times > 1 else f"{num} are no faster"
    if times >= num + 0.5:  # told as more
        differing = differing_words(found.plan.job, found.plan.strategy, alone.plan.strategy)
        worth += f", more than {num}, for one node has {', '.join(differing)}"
    return Fact("one node", f"alone {rate_words(alone.plan.job, best.step_s)}, so {worth}")


def network_fact(
    name: str,
    slower: tuple[str, float | None],
    faster: tuple[str, float | None],
    *,
    is_assumed: bool,
) -> Fact | None:
    """Say how much the network between nodes decides; None: another would change nothing.

    ``slower``, ``faster``: another, and how many times as long a step takes by it with the same
    settings; None: unknown. Of one that was typed the faster one alone is told.
    """
    words = []
    if faster[1] is not None and 1 / faster[1] >= MATTERS:
        words.append(f"by {faster[0]} {1 / faster[1]:.2g} x as fast")
    if is_assumed and slower[1] is not None and slower[1] >= MATTERS:
        words.append(f"by {slower[0]} {slower[1]:.2g} x slower")
    if not words:
        return None
    whose = " is assumed; --network says another" if is_assumed else ""
    return Fact("network", f"{name}{whose}: {', '.join(words)}, with the same settings")


def away_fact(away: Solution) -> Fact:
    """Say how fast a plan is that keeps its optimizer on the host, and what that has to have."""
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
    cluster: Cluster,
    peaks: Sequence[int],
    held: int,
    without: Reserved | PredictedReserved | None,
    *,
    fits: bool,
) -> tuple[Fact, ...]:
    """Lay a run that offloads beside the same run that does not.

    ``peaks``: bytes of tensors of the run that offloads, and of the same with all on the GPU.
    ``held``: what a node's host holds of all its devices. ``without``: what the allocator makes of
    the other; None: unknown.
    """
    peak, other = peaks
    ram = f" of {format_bytes(cluster.host_ram_bytes)}" if cluster.host_ram_bytes else ""
    if cluster.host_ram_bytes and held > cluster.host_ram_bytes:
        ram += f", short by {format_bytes(held - cluster.host_ram_bytes)}"
    words = (
        f"{format_bytes(peak)} of tensors with it, {format_bytes(other)} without "
        f"({'which fits too' if fits else _unfitting(other, without)}); on the host "
        f"{format_bytes(held)}{ram}"
    )
    return (Fact("offload", words),)


def _unfitting(tensors: int, reserved: Reserved | PredictedReserved | None) -> str:
    """Say that a run does not fit; by what its allocator holds where tensors alone would."""
    if reserved is None or tensors > reserved.firm_bytes or not reserved.excess_bytes:
        return "which does not fit"
    meter = replayed_meter(reserved)
    most = format_bytes(min(meter.usable_bytes, reserved.firm_bytes))
    return f"with {format_bytes(meter.used_bytes)} reserved, which does not fit in {most}"
