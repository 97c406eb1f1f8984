"""The cheapest plan: as few of a cluster's devices as make the fewest GPU-seconds per step.

On given devices what is fastest is cheapest. More devices share states, so that less is recomputed,
and send more; which wins is tried, with every number of devices that divides the cluster evenly.
"""

from collections.abc import Iterator, Sequence

import msgspec

from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster
from brimful.search.holding import hold
from brimful.search.pins import Pins
from brimful.search.solve import Solution, solve
from brimful.values.job import Job
from brimful.values.plan import Estimate
from brimful.values.strategy import Attention


def smaller(cluster: Cluster) -> Iterator[Cluster]:
    """Yield the cluster and its even parts: fewer whole nodes, then fewer devices of one."""
    for nodes in range(cluster.num_nodes, 1, -1):
        if cluster.num_nodes % nodes == 0:
            yield _with_counts(cluster, nodes, cluster.devices_per_node)
    for devices in range(cluster.devices_per_node, 0, -1):
        if cluster.devices_per_node % devices == 0:
            yield _with_counts(cluster, 1, devices)


def _with_counts(cluster: Cluster, nodes: int, devices: int) -> Cluster:
    return msgspec.structs.replace(
        cluster,
        num_devices=nodes * devices,
        num_nodes=nodes,
        devices_per_node=devices,
        link=cluster.link if devices > 1 else "",
        network=cluster.network if nodes > 1 else "",
    )


def solve_cheapest(
    job: Job, cluster: Cluster, pins: Pins, *, attention: Attention, also: Sequence[Pins] = ()
) -> Solution:
    """Search the strategies of the cluster and of its even parts.

    ``cluster``: what there is at most. Returns what takes the fewest GPU-seconds per step of all
    that holds; where nothing fits, or no time is known, what the whole cluster does. Raises
    InputError: a pinned value cannot run this job. Raises UnsupportedError: no formula covers the
    job.
    """
    whole = hold(
        solve(job, cluster, pins, attention=attention, objective="cost", also=also)
    ).solution
    found = [whole, *_of_parts(job, cluster, pins, attention, also)]
    best = min(found, key=_gpu_seconds)
    return best._replace(counts=tuple(each.plan for each in found if each is not best))


def _of_parts(
    job: Job, cluster: Cluster, pins: Pins, attention: Attention, also: Sequence[Pins]
) -> Iterator[Solution]:
    for part in smaller(cluster):
        if part.num_devices == cluster.num_devices:
            continue
        try:
            found = solve(job, part, pins, attention=attention, objective="cost", also=also)
            yield hold(found).solution
        except (InputError, UnsupportedError):
            continue  # the batch, or what is pinned, needs other numbers of devices


def _gpu_seconds(found: Solution) -> float:
    made = found.plan.estimate
    if made is None or made.predicted_step_s is None or not surely_fits(made):
        return float("inf")
    return found.plan.cluster.num_devices * made.predicted_step_s


def surely_fits(made: Estimate) -> bool:
    """Whether a plan fits by formulas, and by its replay where there is one."""
    return made.fits and (made.predicted_reserved is None or made.predicted_reserved.word == "fits")
