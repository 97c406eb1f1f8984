"""A job on a cluster by a handful of strategies instead of all: enough to say that it would fit.

What is found is predicted and replayed like any plan; a whole search may find a faster one.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from brimful.cost.estimate import tensor_limit_bytes
from brimful.cost.reserved import predicted_reserved
from brimful.errors import UnsupportedError
from brimful.hardware.cluster import Cluster, offered_bytes
from brimful.search.beside import Fix, held_fix
from brimful.search.fewest import fewest_changes
from brimful.search.holding import as_it_fits
from brimful.search.ledger import Point, predict
from brimful.search.space import cuts_loss
from brimful.search.tries import Find, Tried
from brimful.search.typed import flag_words
from brimful.units import GIB
from brimful.values.job import Job
from brimful.values.plan import Estimate
from brimful.values.strategy import Strategy, spell_checkpointing, world_size

CHUNKS = (1, 16)
LIMIT_STEP_BYTES = GIB // 4
"""In which a limit is told."""
MAX_REPLAYED = 3
"""Strategies that are replayed, the fastest first, and then the leanest."""


def lean(strategy: Strategy) -> Find:
    """Return what ``ways_out`` finds with, quickly.

    ``strategy``: as the command means it, which attends, and keeps its reference, as all that are
    looked at.
    """

    def find(job: Job, cluster: Cluster) -> Tried:
        found = lean_fix(job, cluster, strategy)
        fix = found.fix
        if fix is None and found.made.fits and strategy.pp == 1:  # more of them may hold
            fix = fewest_changes(job, cluster, _over(strategy, cluster.num_devices))
        if fix is None:
            return Tried(found.short_bytes, None, None, made=found.made)
        settings = flag_words(strategy, fix.strategy)
        return Tried(0, fix.made.predicted_step_s, None, settings, fix.made)

    return find


def _over(strategy: Strategy, num: int) -> Strategy:
    """Return a strategy as it is over so many devices, or what shards it over as many."""
    if world_size(strategy) == num:
        return strategy
    plain = msgspec.structs.replace(strategy, zero=0, dp_shard=1, dp_replicate=1, tp=1)
    return plain if num == 1 else msgspec.structs.replace(plain, zero=3, dp_shard=num)


class Looked(NamedTuple):
    """What came of a few strategies.

    Attributes:
        fix: The fastest that holds; None: none does.
        leanest: The one with the smallest peak.
        made: What is predicted of that.
    """

    fix: Fix | None
    leanest: Strategy
    made: Estimate

    @property
    def short_bytes(self) -> int:
        """By how many bytes the leanest does not fit; 1 where only its replay says so."""
        return max(1, self.made.predicted_peak_allocated_bytes - self.made.usable_bytes)


def lean_fix(job: Job, cluster: Cluster, strategy: Strategy) -> Looked:
    """Find the fastest of a few strategies that holds.

    ``strategy``: which attends, and keeps its reference, as all that are looked at.
    """
    known = []
    for each in ladder(job, cluster, strategy):
        made = predict(Point(job, each), cluster)
        if isinstance(made, Estimate):
            known.append((each, made))
    if not known:
        raise UnsupportedError(f"no formula covers {job.model.name} in any of a few ways")
    leanest = min(known, key=lambda pair: pair[1].predicted_peak_allocated_bytes)
    fitting = [pair for pair in known if pair[1].fits]
    fitting.sort(key=lambda pair: pair[1].predicted_step_s or 0.0)
    for each, made in [*fitting[:MAX_REPLAYED], *([leanest] if fitting else [])]:
        fix = held_fix(job, cluster, each, made)
        if fix is not None:
            return Looked(fix, *leanest)
    return Looked(None, *leanest)


def least_limit(job: Job, cluster: Cluster, strategy: Strategy) -> int | None:
    """Return the least memory limit under which a strategy holds; None: the GPU has too little.

    ``cluster``: on what, under a limit that is too low.
    """
    reserved = predicted_reserved(job, cluster, strategy)
    if reserved is None:
        return None
    beside = offered_bytes(cluster) - tensor_limit_bytes(cluster)
    need = reserved.predicted_unhindered_bytes + beside
    limit = -(-need // LIMIT_STEP_BYTES) * LIMIT_STEP_BYTES
    if limit > cluster.device.usable_bytes:
        return None
    allowed = msgspec.structs.replace(cluster, memory_limit_bytes=limit)
    return limit if as_it_fits(job, allowed, strategy) is not None else None


def ladder(job: Job, cluster: Cluster, strategy: Strategy) -> Iterator[Strategy]:
    """Yield one sequence at a time, spread in each plain way, recomputed more and more."""
    layers, num = job.model.num_layers, cluster.num_devices
    half = spell_checkpointing(layers // 2, num_layers=layers)
    plain = Strategy(
        micro_batch=1,
        activation_checkpointing="none",
        loss_chunks=1,
        attention=strategy.attention,
        reference=strategy.reference,
        fsdp=strategy.fsdp,
        fused_kernels=strategy.fused_kernels,
    )
    for spread in _spread(plain, num):
        for recomputed in ("none", "selective", half, "full"):
            for chunks in CHUNKS if cuts_loss(job, strategy.fused_kernels) else CHUNKS[:1]:
                yield msgspec.structs.replace(
                    spread, activation_checkpointing=recomputed, loss_chunks=chunks
                )


def _spread(plain: Strategy, num: int) -> Iterator[Strategy]:
    if num == 1:
        yield plain
        return
    yield msgspec.structs.replace(plain, zero=3, dp_shard=num)
    yield msgspec.structs.replace(plain, dp_replicate=num)
    yield msgspec.structs.replace(plain, tp=num)
