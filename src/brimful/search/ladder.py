"""Strategies that need less and less memory than one that needed too much, and change nothing else.

A ladder of exact switches, each on top of those before, the cheapest in time first. Not a search:
where a job has a formula the planner knows better (``next_strategy``). What keeps state off the
device is dearest and comes last.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from brimful.cost.estimate import allocatable_bytes, estimate, tensor_limit_bytes
from brimful.cost.formula import missing_formula
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster
from brimful.search.pins import Pins
from brimful.search.solve import solve
from brimful.search.space import cuts_loss
from brimful.search.table import Objective
from brimful.techniques.exact import SAME_LAW, Field, exactness
from brimful.techniques.offload import Away, spell_offload
from brimful.techniques.runnable import check_strategy
from brimful.values.job import Job
from brimful.values.strategy import (
    Recompute,
    Strategy,
    Zero,
    data_parallel,
    is_selective,
    num_checkpointed,
    spell_checkpointing,
    what_is_away,
    world_size,
)

LESS = 0.9
"""What is tried next needs a tenth less than what failed, if anything does: what was predicted of
that was too little, or others use the device too."""
CHUNKS = (4, 16)
_SHARDED: tuple[Zero, ...] = (1, 2, 3)
Switch = Callable[[Job, Strategy], Iterator[Strategy]]
"""Yields what a switch makes of a strategy, in steps, each with less memory than the one before."""


def target_bytes(failed_bytes: float, limit_bytes: int) -> int:
    """Return what the next strategy may need: within the limit, and less than what failed."""
    return int(min(limit_bytes, LESS * failed_bytes))


def rungs(job: Job, strategy: Strategy) -> Iterator[Strategy]:
    """Yield strategies below one, each an exact switch further than the one before."""
    now = strategy
    for switch in SWITCHES:
        for lower in switch(job, now):
            if _runs(job, lower):
                now = lower
                yield now


def next_strategy(job: Job, cluster: Cluster, failed: Sequence[Strategy]) -> Strategy | None:
    """Return the planner's fastest strategy that needs less than those that failed.

    ``cluster``: on what; its limit is kept where anything keeps it. Returns of those that are
    within the limit and a tenth below every failed one the fastest; else the one that needs least,
    if that is less than they need. None: there is none, or no formula.
    """
    if any(missing_formula(job, each, cluster.device) for each in failed):
        return None
    peaks = [_peak_bytes(job, cluster, each) for each in failed]
    bar = target_bytes(min(peaks), tensor_limit_bytes(cluster))
    objectives: tuple[Objective, ...] = ("time", "memory")
    for objective, most in zip(objectives, (bar, min(peaks) - 1), strict=True):
        found = _best(job, _limited(cluster, bar), failed[-1], objective)
        if found is not None and _peak_bytes(job, cluster, found) <= most:
            return found
    return None


def _peak_bytes(job: Job, cluster: Cluster, strategy: Strategy) -> int:
    return estimate(job, cluster, strategy).predicted_peak_allocated_bytes


def _best(job: Job, cluster: Cluster, failed: Strategy, objective: Objective) -> Strategy | None:
    try:
        found = solve(
            job, cluster, _pins(job, failed), attention=failed.attention, objective=objective
        )
    except (InputError, UnsupportedError):
        return None
    return found.plan.strategy


def _limited(cluster: Cluster, num_bytes: int) -> Cluster:
    """Return a cluster of whose devices tensors may take so much."""
    device = cluster.device
    outside = device.usable_bytes - allocatable_bytes(device)
    return msgspec.structs.replace(cluster, memory_limit_bytes=num_bytes + outside)


def _pins(job: Job, failed: Strategy) -> Pins:
    """Fix what other values of would not be exact, and what lays matrices and blocks out."""
    row = (failed.pp_schedule, failed.stages_per_device) if failed.pp > 1 else (None, None)
    return Pins(
        micro_batch=None if _is_exact(job, "micro_batch", 1) else failed.micro_batch,
        tp=failed.tp,
        pp=failed.pp,
        pp_schedule=row[0],
        stages_per_device=row[1],
        reference=failed.reference,
        fsdp=failed.fsdp,
        fused_kernels=failed.fused_kernels,
        allocator=failed.allocator,
    )


def _is_exact(job: Job, field: Field, value: object) -> bool:
    return exactness(job, field, value).how in {*SAME_LAW, "built"}  # building tells, and refuses


def _runs(job: Job, strategy: Strategy) -> bool:
    try:
        check_strategy(job, strategy)
    except (InputError, UnsupportedError):
        return False
    return True


def _with(strategy: Strategy, **changes: object) -> Strategy:
    return msgspec.structs.replace(strategy, **changes)


def _fused(_job: Job, strategy: Strategy) -> Iterator[Strategy]:
    """Attend by the device's own kernel, which writes no scores out."""
    if strategy.attention == "eager":
        yield _with(strategy, attention="sdpa")


def _sharded(_job: Job, strategy: Strategy) -> Iterator[Strategy]:
    """Shard more of the states, over all devices that hold the same."""
    for zero in _SHARDED:
        if zero > strategy.zero and data_parallel(strategy) > 1:
            degrees = {"dp_shard": data_parallel(strategy), "dp_replicate": 1}
            yield _with(strategy, zero=zero, **({} if strategy.zero else degrees))


def _chunked(job: Job, strategy: Strategy) -> Iterator[Strategy]:
    """Cut the loss, so that logits never exist whole."""
    for chunks in CHUNKS:
        if cuts_loss(job, strategy.fused_kernels) and chunks > strategy.loss_chunks:
            yield _with(strategy, loss_chunks=chunks)


def _smaller(job: Job, strategy: Strategy) -> Iterator[Strategy]:
    """Halve the micro-batch, again and again; their gradients must add up before the update."""
    share, size = job.global_batch // data_parallel(strategy), strategy.micro_batch
    while size > 1:
        size = max(n for n in range(1, size // 2 + 1) if share % n == 0)
        if _is_exact(job, "micro_batch", size):
            yield _with(strategy, micro_batch=size, optimizer_in_backward=False)


def _recomputed(job: Job, strategy: Strategy) -> Iterator[Strategy]:
    """Recompute the cheap parts of half of the blocks, of all, then all of all of them."""
    num_layers = job.model.num_layers
    before = num_checkpointed(strategy, num_layers=num_layers)
    is_plain = not before or is_selective(strategy)
    steps: tuple[tuple[Recompute, int], ...] = (
        ("selective", num_layers // 2), ("selective", num_layers), ("full", num_layers),
    )  # fmt: skip
    for recompute, num_blocks in steps:
        is_more = num_blocks > before if recompute == "selective" else num_blocks > 0
        if not is_more or (recompute == "selective" and not is_plain):
            continue
        text = spell_checkpointing(num_blocks, num_layers=num_layers, recompute=recompute)
        if text != strategy.activation_checkpointing and _is_exact(
            job, "activation_checkpointing", text
        ):
            yield _with(strategy, activation_checkpointing=text)


def _early(_job: Job, strategy: Strategy) -> Iterator[Strategy]:
    """Update inside the backward pass, where that is exact."""
    if not strategy.optimizer_in_backward:
        yield _with(strategy, optimizer_in_backward=True)


def _offloaded(job: Job, strategy: Strategy) -> Iterator[Strategy]:
    """Keep more and more on the host: what the update needs, parameters of blocks, activations.

    Of adapters the update needs next to nothing.
    """
    before, is_frozen = what_is_away(job, strategy), job.adapter is not None
    rest = ((1, 0), (1, 1)) if world_size(strategy) == 1 or is_frozen else ((0, 1),)
    for parameters, activations in rest if is_frozen else ((0, 0), *rest):
        most = job.model.num_layers
        kept = max(activations * most, before.activations)
        away = Away(
            optimizer=before.optimizer or not is_frozen,
            parameters=parameters * most,
            activations=kept,
            frozen=is_frozen,
        )
        text = spell_offload(away, num_layers=most)
        if text != strategy.offload and before.parameters <= away.parameters:
            yield _with(strategy, optimizer_in_backward=False, offload=text)


SWITCHES: tuple[Switch, ...] = (
    _fused, _early, _sharded, _chunked, _smaller, _recomputed, _offloaded,
)  # fmt: skip
"""The cheapest in time first."""
