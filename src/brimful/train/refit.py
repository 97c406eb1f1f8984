"""The plan of a run that goes on with another number of devices than it began with.

The job stays as it is, global batch and all, so that the curve goes on; how it is run is searched
anew for the devices that there are.
"""

import msgspec

from brimful.cost.formula import missing_formula
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster
from brimful.search.pins import Pins
from brimful.search.solve import solve
from brimful.techniques.runnable import check_strategy
from brimful.values.plan import Plan
from brimful.values.strategy import Strategy, world_size


def refitted(plan: Plan, num_devices: int) -> Plan:
    """Return a plan of the same job for as many devices as there are.

    ``plan``: what the run began with; returned as it is where it is for that many. Raises
    UnsupportedError: no formula covers the job, and its strategy cannot be stretched.
    """
    if world_size(plan.strategy) == num_devices:
        return plan
    cluster, plan = of_size(plan.cluster, num_devices), _whole_again(plan)
    if missing_formula(plan.job, plan.strategy, cluster.device):
        return _stretched(plan, cluster)
    attention = plan.strategy.attention
    pins = Pins(reference=plan.strategy.reference, pp=1, allocator=plan.strategy.allocator)
    found = solve(plan.job, cluster, pins, attention=attention, objective="time")
    if not found.record.rows[0].fits:
        raise InputError(
            f"on {num_devices} devices nothing fits that fitted on "
            f"{world_size(plan.strategy)}; start as many again, or see brimful plan"
        )
    return found.plan


def of_size(cluster: Cluster, num_devices: int) -> Cluster:
    """Return a cluster of the same devices, whole nodes where they fill nodes."""
    each = min(cluster.devices_per_node, num_devices)
    if num_devices % each:
        each = num_devices
    return msgspec.structs.replace(
        cluster,
        num_devices=num_devices,
        num_nodes=num_devices // each,
        devices_per_node=each,
    )


def _whole_again(plan: Plan) -> Plan:
    """Return a plan without pipeline and parted experts, which the number of devices laid out."""
    if plan.strategy.ep > 1:
        plan = msgspec.structs.replace(plan, strategy=msgspec.structs.replace(plan.strategy, ep=1))
    if plan.strategy.pp == 1:
        return plan
    usual = {"pp": 1, "pp_schedule": "1f1b", "stages_per_device": 1, "stage_blocks": ()}
    alone = msgspec.structs.replace(plan.strategy, **usual, accumulate="reduce-each")
    return msgspec.structs.replace(plan, strategy=alone)


def _stretched(plan: Plan, cluster: Cluster) -> Plan:
    """Keep everything of a strategy that nobody can predict but its number of replicas."""
    old, num_devices = plan.strategy, cluster.num_devices
    degrees = {"dp_replicate": num_devices, "dp_shard": 1, "zero": 0}
    if old.zero:
        degrees = {"dp_replicate": 1, "dp_shard": num_devices, "zero": old.zero}
    if num_devices == 1:
        degrees = {"dp_replicate": 1, "dp_shard": 1, "zero": 0}
    if old.tp > 1:
        raise UnsupportedError(
            f"a run with tp={old.tp} that no formula covers cannot be laid out anew; start "
            f"{world_size(old)} processes, not {num_devices}"
        )
    changed: Strategy = msgspec.structs.replace(old, **degrees)
    share = plan.job.global_batch // num_devices
    micro_batch = max(n for n in range(1, old.micro_batch + 1) if share % n == 0) if share else 1
    strategy = check_strategy(plan.job, msgspec.structs.replace(changed, micro_batch=micro_batch))
    return msgspec.structs.replace(plan, cluster=cluster, strategy=strategy, estimate=None)
