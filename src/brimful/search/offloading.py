"""Searching what keeps the optimizer on the host, and parameters, beside what keeps all here.

Where a node's host is known to suffice both are searched, and the faster is the plan; the frozen
base of adapters is put there only where nothing holds with it on the devices. Where nobody
knows what it has, what offloads is searched if nothing holds without; and where it is known to be
too small, to say what it lacks. A CPU is its own host: it offloads where that is asked for, and not
to find room. A GPU whose memory is the host's own offloads nothing.
"""

from collections.abc import Sequence
from functools import partial

import msgspec

from brimful.cost.estimate import estimate, tensor_limit_bytes
from brimful.cost.formula import missing_formula
from brimful.cost.states import staying_bytes
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster
from brimful.hardware.datasheets import has_one_memory
from brimful.search.holding import Held, hold
from brimful.search.pins import Pins, pinned_strategy
from brimful.search.solve import Solution, solve
from brimful.search.table import Objective
from brimful.techniques.offload import OPTIMIZER, PARAMETERS
from brimful.techniques.runnable import check_strategy, placed
from brimful.values.job import Job
from brimful.values.plan import HostMemory
from brimful.values.strategy import Attention, Strategy

AWAY = (OPTIMIZER, PARAMETERS)
"""What is offloaded, the least first."""


def solve_offloading(  # noqa: PLR0913 - as ``solve``
    job: Job,
    cluster: Cluster,
    pins: Pins,
    *,
    attention: Attention,
    objective: Objective,
    also: Sequence[Pins] = (),
) -> Solution:
    """Search as ``solve`` does, and what offloads too, and return what holds by its replay.

    ``pins``: what the user fixed; where that says what is offloaded, nothing else is looked at.
    Raises InputError: a pinned value cannot run this job. Raises UnsupportedError: no formula
    covers the job.
    """
    every = (pins, *also)
    ask = partial(solve, job, attention=attention, objective=objective)
    more = for_known_host(job, cluster, every, attention)
    held = hold(ask(cluster, pins, also=(*also, *more)))
    if _holds(held):
        return held.solution
    if bases := with_base_away(job, cluster, every, attention):
        away = hold(ask(cluster, bases[0], also=bases[1:]))
        if _holds(away):
            return away.solution
    anywhere = msgspec.structs.replace(cluster, host_ram_bytes=0)
    nearest = None
    for what in AWAY:
        first, *others = offloaded(job, anywhere, every, attention, what) or (None,)
        if first is None or first in (*more, *bases):
            continue
        beside = hold(ask(anywhere, first, also=others))
        nearest = beside.solution.plan
        if _holds(beside):
            if not cluster.host_ram_bytes:
                return beside.solution
            break
    return held.solution._replace(offloaded=nearest)


def is_hopeless(job: Job, cluster: Cluster, attention: Attention) -> bool:
    """Whether nothing can hold, offloaded or not, as what stays is too much for all devices.

    False where nobody has listed the model's parameters.
    """
    room, kernels = tensor_limit_bytes(cluster) * cluster.num_devices, cluster.device.kernels
    try:
        bare = staying_bytes(job, kernels, with_optimizer=False)
        if staying_bytes(job, kernels) <= room:
            return False
    except UnsupportedError:
        return False
    anywhere, free = msgspec.structs.replace(cluster, host_ram_bytes=0), [Pins()]
    can_leave = (PARAMETERS,) if bare > room else AWAY
    return not any(offloaded(job, anywhere, free, attention, what) for what in can_leave)


def for_known_host(
    job: Job, cluster: Cluster, every: Sequence[Pins], attention: Attention
) -> list[Pins]:
    """Return what may be fixed beside, of what offloads, where a host suffices for it."""
    if not cluster.host_ram_bytes:
        return []
    kinds = [what for what in AWAY if not (what == PARAMETERS and job.adapter is not None)]
    return [one for what in kinds for one in offloaded(job, cluster, every, attention, what)]


def with_base_away(
    job: Job, cluster: Cluster, every: Sequence[Pins], attention: Attention
) -> list[Pins]:
    """Return the same of a frozen base, which is brought where nothing holds with all of it here.

    It is copied again and again, and makes nothing faster where there is room for it.
    """
    if not cluster.host_ram_bytes or job.adapter is None:
        return []
    return offloaded(job, cluster, every, attention, PARAMETERS)


def offloaded(
    job: Job, cluster: Cluster, every: Sequence[Pins], attention: Attention, what: str
) -> list[Pins]:
    """Return what is fixed where something is offloaded that the host may have room for.

    ``every``: what is fixed else; what of that says what is offloaded is left out.
    """
    if cluster.device.kernels == "cpu" or has_one_memory(cluster.device.name):
        return []
    offloading = [each._replace(offload=what) for each in every if each.offload is None]
    hosts = [(each, _host(job, cluster, each, attention)) for each in offloading]
    return [
        each
        for each, host in hosts
        if host is not None and (host.fits or (host.fits is None and not host.usable_bytes))
    ]


def _host(job: Job, cluster: Cluster, pins: Pins, attention: Attention) -> HostMemory | None:
    """Return what a host holds of what offloads; None: it has no formula, or cannot run."""
    if pins.optimizer_in_backward:
        return None
    strategy = _that_runs(job, cluster, pins, attention)
    if strategy is None or missing_formula(job, strategy, cluster.device):
        return None
    return estimate(job, cluster, strategy).host


def _that_runs(job: Job, cluster: Cluster, pins: Pins, attention: Attention) -> Strategy | None:
    """Return what is asked for where this version runs it, or the same with a whole model."""
    num = cluster.num_devices
    for each in (pins, pins._replace(zero=0)) if pins.zero is None else (pins,):
        try:
            return check_strategy(job, placed(pinned_strategy(each, attention, num), num))
        except (InputError, UnsupportedError):
            continue
    return None


def _holds(held: Held) -> bool:
    """Whether a plan fits by its replay, or by what stands for that where there is none."""
    fits = held.solution.record.rows[0].fits
    return fits and (held.reserved is None or not held.reserved.short_bytes)
