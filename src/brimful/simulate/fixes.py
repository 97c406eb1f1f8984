"""What would make a strategy fit that was simulated and does not, where no formula covers it.

One other strategy is simulated, the leanest in what a planner may change, and if that does not hold
the smallest GPU that has what it takes.
"""

from typing import NamedTuple

import msgspec

from brimful.cost.outside import num_groups, room_of
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster, spelled
from brimful.search.larger_clusters import cards_for, with_gpu
from brimful.search.space import cuts_loss
from brimful.simulate.run import simulate
from brimful.techniques.runnable import check_strategy
from brimful.values.job import Job
from brimful.values.results import Reserved
from brimful.values.strategy import Strategy

CHUNKS = 16


class SimulatedFix(NamedTuple):
    """A simulation that holds.

    Attributes:
        strategy: How.
        gpus: Which others, as they are typed; empty: the same.
        reserved: What the allocator makes of it.
    """

    strategy: Strategy
    gpus: str
    reserved: Reserved


def simulated_fix(job: Job, cluster: Cluster, strategy: Strategy) -> SimulatedFix | None:
    """Find what holds; None: nothing that was looked at does.

    ``strategy``: what does not hold.
    """
    lean = msgspec.structs.replace(
        strategy,
        micro_batch=1,
        activation_checkpointing="full" if job.model.num_layers else "none",
        loss_chunks=CHUNKS if cuts_loss(job, strategy.fused_kernels) else 1,
    )
    reserved = _reserved(job, cluster, lean)
    if reserved is None:
        return None
    if reserved.word == "fits":
        return SimulatedFix(lean, "", reserved)
    larger = _larger(job, cluster, lean, reserved.simulated_unhindered_bytes)
    if larger is None:
        return None
    held = _reserved(job, larger, lean)
    if held is None or held.word != "fits":
        return None
    return SimulatedFix(lean, spelled(larger), held)


def _reserved(job: Job, cluster: Cluster, strategy: Strategy) -> Reserved | None:
    try:
        check_strategy(job, strategy)
        return simulate(job, cluster, strategy).reserved
    except (InputError, UnsupportedError):
        return None


def _larger(job: Job, cluster: Cluster, strategy: Strategy, num_bytes: int) -> Cluster | None:
    """Return as many of the smallest GPU that has room for what an allocator holds."""
    groups = num_groups(strategy)
    for device in cards_for(job, cluster.device.name):
        if room_of(device, num_groups=groups).firm_bytes >= num_bytes:
            return with_gpu(cluster, device)
    return None
