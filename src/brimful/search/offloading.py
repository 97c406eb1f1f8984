"""Searching what keeps the optimizer on the host, beside what keeps all on the device.

Where a node's host is known to suffice both are searched, and the faster is the plan. Where nobody
knows what it has, what offloads is searched if nothing holds without.
"""

from collections.abc import Sequence

from brimful.cost.estimate import estimate
from brimful.cost.formula import missing_formula
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster
from brimful.job import Job
from brimful.offload import OPTIMIZER
from brimful.plan import HostMemory
from brimful.search.holding import Held, hold
from brimful.search.solve import Solution, solve
from brimful.search.space import Pins, pinned_strategy
from brimful.search.table import Objective
from brimful.strategy import Attention, check_strategy, placed


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

    Args:
        job: What is trained.
        cluster: On what.
        pins: What the user fixed; where that says what is offloaded, nothing else is looked at.
        attention: How the model attends.
        objective: What is made least.
        also: More that may be fixed instead.

    Raises:
        InputError: A pinned value cannot run this job.
        UnsupportedError: No formula covers the job.
    """
    hosts = [(each, _host(job, cluster, each, attention)) for each in (pins, *also)]
    hosts = [(each, host) for each, host in hosts if host is not None and host.fits is not False]
    away = [each._replace(offload=OPTIMIZER) for each, _ in hosts]
    is_known = bool(hosts) and all(host is not None and host.fits for _, host in hosts)
    more = [*also, *away] if is_known else also
    held = hold(solve(job, cluster, pins, attention=attention, objective=objective, also=more))
    if is_known or not away or _holds(held):
        return held.solution
    first, *others = away
    beside = hold(solve(job, cluster, first, attention=attention, objective=objective, also=others))
    if _holds(beside):
        return beside.solution
    return held.solution._replace(offloaded=beside.solution.plan)


def _host(job: Job, cluster: Cluster, pins: Pins, attention: Attention) -> HostMemory | None:
    """Return what a host holds of what offloads; None: it is not looked at, or cannot run."""
    if pins.offload is not None or cluster.num_devices > 1:
        return None
    asked = pinned_strategy(pins._replace(offload=OPTIMIZER), attention, 1)
    if pins.optimizer_in_backward or missing_formula(job, asked, cluster.device):
        return None
    try:
        strategy = check_strategy(job, placed(asked, 1))
    except (InputError, UnsupportedError):
        return None
    return estimate(job, cluster, strategy).host


def _holds(held: Held) -> bool:
    """Whether a plan fits by its replay, or by what stands for that where there is none."""
    fits = held.solution.record.rows[0].fits
    return fits and (held.reserved is None or not held.reserved.short_bytes)
