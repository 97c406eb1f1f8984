"""What of other settings holds on the same devices with the fewest changed.

Every micro-batch, every number of checkpointed blocks and of chunks of the loss is searched, as
``plan`` searches them. How the model is spread stays as it was asked for, where that can hold.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster
from brimful.search.beside import Fix
from brimful.search.holding import hold_firmly
from brimful.search.offloading import AWAY, offloaded
from brimful.search.pins import Pins
from brimful.search.solve import Space, solve
from brimful.search.table import Table, columns_of
from brimful.techniques.offload import NONE
from brimful.values.job import Job
from brimful.values.strategy import Strategy

_BESIDE = (
    "reference", "offload", "optimizer_in_backward", "compile", "fsdp", "fused_kernels",
    "allocator",
)  # fmt: skip
_SPREAD = ("zero", "dp_replicate", "dp_shard", "accumulate", "tp", "ep")
_ROW = ("pp", "pp_schedule", "stages_per_device")
_SETTINGS = (("micro_batch",), ("num_blocks", "recompute"), ("loss_chunks",))
"""Columns of a table that are one setting each."""


def fewest_changes(job: Job, cluster: Cluster, strategy: Strategy) -> Fix | None:
    """Return what holds with the fewest settings changed, of such the fastest; None: nothing does.

    ``strategy``: what does not fit; it has a formula.
    """
    return _fewest(job, cluster, strategy, _as_spread(strategy))


def spread_anew(job: Job, cluster: Cluster, strategy: Strategy) -> Fix | None:
    """Return the fastest that holds of every way to spread over several devices, but in a row.

    ``strategy``: what does not fit; it has a formula.
    """
    if cluster.num_devices == 1:
        return None
    stays = {name: getattr(strategy, name) for name in _BESIDE}
    space = _searched(job, cluster, strategy, Pins(**stays, pp=1))
    return None if space is None else _fix_of(space)


def on_the_host(job: Job, cluster: Cluster, strategy: Strategy) -> Fix | None:
    """Return the same with the optimizer on the host, or parameters too, where nothing is there.

    ``strategy``: what does not fit; it has a formula.
    """
    if strategy.offload != NONE or strategy.pp > 1:
        return None
    own = _as_spread(strategy)._replace(offload=None)
    for what in AWAY:
        for pins in offloaded(job, cluster, [own], strategy.attention, what):
            found = _fewest(job, cluster, strategy, pins)
            if found is not None:
                return found
    return None


def _as_spread(strategy: Strategy) -> Pins:
    """Return what stays: all but the settings that are searched."""
    fixed = _BESIDE + _SPREAD + (_ROW if strategy.pp > 1 else ())
    return Pins(**{name: getattr(strategy, name) for name in fixed})


def _fewest(job: Job, cluster: Cluster, strategy: Strategy, pins: Pins) -> Fix | None:
    space = _searched(job, cluster, strategy, pins)
    if space is None:
        return None
    changes = _num_changed(space.table, strategy, job.model.num_layers)
    for num in np.unique(changes[space.table.fits]):
        found = _fix_of(space.without(changes != num))
        if found is not None:
            return found
    return None


def _searched(job: Job, cluster: Cluster, strategy: Strategy, pins: Pins) -> Space | None:
    """Search what is not fixed; None: it cannot run so, or no formula covers it."""
    try:
        found = solve(job, cluster, pins, attention=strategy.attention, objective="time")
    except (InputError, UnsupportedError):
        return None
    return found.space


def _num_changed(table: Table, strategy: Strategy, num_layers: int) -> NDArray[np.int64]:
    """Count in each row how many settings are not as in a strategy: [strategies]."""
    own = columns_of([strategy], num_layers=num_layers)
    differs: list[NDArray[Any]] = [
        np.logical_or.reduce([getattr(table, name) != own[name] for name in names])
        for names in _SETTINGS
    ]
    count: NDArray[np.int64] = np.sum(differs, axis=0, dtype=np.int64)
    return count


def _fix_of(space: Space) -> Fix | None:
    """Return the best that fits by its replay, on the host too; None: nothing does."""
    held = hold_firmly(space.best())
    if held is None:
        return None
    found, made = held.solution, held.solution.plan.estimate
    if made is None or not found.record.rows[0].fits:
        return None
    is_host_short = made.host is not None and made.host.fits is False
    reserved = made.predicted_reserved
    holds = not is_host_short and (reserved is None or reserved.word == "fits")
    return Fix(found.plan.strategy, made) if holds else None
