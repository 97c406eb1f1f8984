"""The ways of spreading a model over devices that this version runs for a job."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple, get_args

import msgspec

from brimful.cost.formula import missing_parted
from brimful.cost.own_programs import is_foreseen
from brimful.cost.programs import kernels_of
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster
from brimful.search.pins import Pins, fused_of, pinned_strategy
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.techniques.offload import Devices, check_offload
from brimful.techniques.parallel.tensor import check_tensor
from brimful.techniques.runnable import check_spread
from brimful.values.job import Job
from brimful.values.strategy import Accumulate, Attention, Zero


def tensor_degrees(job: Job, pins: Pins, cluster: Cluster) -> tuple[int, ...]:
    """List over how many devices every matrix may be cut: neighbours within a node.

    ``pins``: what the user fixed; a fixed degree is the only one, whether it can run or not.
    """
    if pins.tp is not None:
        return (pins.tp,)
    least = 1 + (pins.pp is not None and pins.pp > 1)
    within = range(least, min(cluster.num_devices, cluster.devices_per_node) + 1)
    degrees = (n for n in within if cluster.devices_per_node % n == cluster.num_devices % n == 0)
    return tuple(n for n in degrees if _is_cut(job, n))


def expert_degrees(job: Job, pins: Pins, attention: Attention, cluster: Cluster) -> tuple[int, ...]:
    """List among how many devices experts may be parted: neighbours within a node.

    Where that is another trace with each number, of several the largest: it leaves least on a
    device, and its collectives are the smallest.

    ``pins``: what the user fixed; a fixed degree is the only one, whether it can run or not.
    """
    if pins.ep is not None:
        return (pins.ep,)
    num = cluster.num_devices
    within = min(num, cluster.devices_per_node)
    if missing_parted(pinned_strategy(pins._replace(ep=within), attention)):
        return (1,)
    parted = [
        n
        for n in range(2, within + 1)
        if within % n == 0 and _is_possible(job, pins, 3, 1, num, 1, n)
    ]
    kernels = kernels_of(cluster.device, fused_of(pins))
    if parted and not is_foreseen(job, attention, kernels, ep=parted[-1]):
        parted = parted[-1:]
    return (1, *parted)


def _is_cut(job: Job, tp: int) -> bool:
    try:
        check_tensor(job, tp)
    except (InputError, UnsupportedError):
        return False
    return True


class Spread(NamedTuple):
    """A way of spreading a model over devices, but for the number of shards.

    Attributes:
        tp: Devices that share every matrix.
        num_groups: Groups of such devices, which see different samples.
        zero: Which states are sharded.
        accumulate: What happens to gradients between micro-batches.
        num_shards: Numbers of devices that may share one copy.
        ep: Devices that part the experts of a block.
    """

    tp: int
    num_groups: int
    zero: Zero
    accumulate: Accumulate
    num_shards: tuple[int, ...]
    ep: int = 1


def spreads_of(
    job: Job, pins: Pins, attention: Attention, cluster: Cluster, degrees: Sequence[int]
) -> Iterator[list[Spread]]:
    """Yield the ways of spreading that this version runs for the job.

    Together are those that differ in nothing but how many devices share every matrix; where none
    does, other operations run.
    """
    num = cluster.num_devices
    found = [
        each
        for ep in expert_degrees(job, pins, attention, cluster)
        for tp in (degrees if ep == 1 else [n for n in degrees if n == 1])
        for each in _spread_over(job, pins, num, tp, ep)
    ]
    together: dict[tuple[bool, int, Zero, Accumulate], list[Spread]] = {}
    for spread in found:
        key = (spread.tp > 1, spread.ep, spread.zero, spread.accumulate)
        together.setdefault(key, []).append(spread)
    yield from together.values()


def _spread_over(job: Job, pins: Pins, num_devices: int, tp: int, ep: int) -> Iterator[Spread]:
    """Yield the ways of spreading over devices: ``tp`` share every matrix, ``ep`` part experts."""
    num_groups = num_devices // tp
    if num_groups == 1 and ep == 1:
        if tp == 1 or (_is_alone(pins) and _is_possible(job, pins, 0, 1, 1, tp, 1)):
            yield Spread(tp, 1, 0, "reduce-each", (1,))
        return
    for zero, accumulate in product(get_args(Zero), get_args(Accumulate)):
        if (pins.zero, pins.accumulate) not in product((None, zero), (None, accumulate)):
            continue
        shards = [
            n for n in range(1, num_groups + 1)
            if num_groups % n == 0
            and _is_wanted(pins, num_groups // n, n)
            and _is_possible(job, pins, zero, num_groups // n, n, tp, ep)
        ]  # fmt: skip
        if shards:
            yield Spread(tp, num_groups, zero, accumulate, tuple(shards), ep)


def _is_alone(pins: Pins) -> bool:
    """Whether the user's choices leave all devices to one group, which shards nothing else."""
    degrees = {pins.dp_shard or 1, pins.dp_replicate or 1}
    return degrees == {1} and not pins.zero and pins.accumulate in {None, "reduce-each"}


def _is_wanted(pins: Pins, replicas: int, shards: int) -> bool:
    return pins.dp_shard in {None, shards} and pins.dp_replicate in {None, replicas}


def _is_possible(  # noqa: PLR0913, PLR0917 - the degrees
    job: Job, pins: Pins, zero: Zero, replicas: int, shards: int, tp: int, ep: int
) -> bool:
    """Whether this version runs a job so spread."""
    own = Pins(fused_kernels=pins.fused_kernels, fsdp=pins.fsdp)
    plain, offload = pinned_strategy(own, "sdpa"), pins.offload or NO_OFFLOAD
    spread = {"zero": zero, "dp_shard": shards, "dp_replicate": replicas, "tp": tp, "ep": ep}
    try:
        check_spread(job, msgspec.structs.replace(plain, **spread))
        check_offload(job, offload, Devices(replicas * shards * tp, 1, zero, tp))
    except (InputError, UnsupportedError):
        return False
    return True
