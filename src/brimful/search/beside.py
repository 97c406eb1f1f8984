"""One strategy beside others that differ in one setting, and what of these would make it fit.

Nothing is advice by rote: what is named is predicted, and what is called a way that fits is
replayed by the allocator's rules.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from brimful.cost.reserved import predicted_reserved
from brimful.hardware.cluster import Cluster
from brimful.search.holding import as_it_fits
from brimful.search.ledger import Point, predict
from brimful.search.space import cuts_loss
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.values.job import Job
from brimful.values.plan import Estimate
from brimful.values.strategy import Strategy, Zero, default_accumulate, spell_checkpointing

CHUNKS = (4, 16)
"""Of the loss, that are looked at."""
MAX_SIZES = 6
"""Micro-batches that are looked at, the largest first."""
MAX_REPLAYED = 4
"""Single changes that are replayed, the fastest first."""


class Beside(NamedTuple):
    """The same run with one setting changed.

    Attributes:
        setting: Which, as a strategy's field is called.
        strategy: The whole strategy.
        made: What is predicted.
    """

    setting: str
    strategy: Strategy
    made: Estimate


class Fix(NamedTuple):
    """A strategy that holds where another does not.

    Attributes:
        strategy: It, with the settings of the allocator with which it was replayed.
        made: What is predicted.
    """

    strategy: Strategy
    made: Estimate


def beside(job: Job, cluster: Cluster, strategy: Strategy) -> tuple[Beside, ...]:
    """Predict a run with one setting changed at a time; what cannot run is left out."""
    found = []
    for setting, other in _changed(job, strategy):
        made = predict(Point(job, other), cluster)
        if isinstance(made, Estimate):
            found.append(Beside(setting, other, made))
    return tuple(found)


def fix(job: Job, cluster: Cluster, others: tuple[Beside, ...]) -> Fix | None:
    """Return the fastest single change that holds by its replay; None: none of them does.

    ``others``: what ``beside`` found.
    """
    fitting = [each for each in others if each.made.fits]
    fitting.sort(key=lambda each: each.made.predicted_step_s or 0.0)
    for each in fitting[:MAX_REPLAYED]:
        held = held_fix(job, cluster, each.strategy, each.made)
        if held is not None:
            return held
    return None


def held_fix(job: Job, cluster: Cluster, strategy: Strategy, made: Estimate) -> Fix | None:
    """Return a strategy as it holds by its replay, and its prediction; None: it does not."""
    is_host_short = made.host is not None and made.host.fits is False
    held = None if is_host_short else as_it_fits(job, cluster, strategy)
    if held is None:
        return None
    reserved = predicted_reserved(job, cluster, held)
    return Fix(held, msgspec.structs.replace(made, predicted_reserved=reserved))


def used_bytes(job: Job, cluster: Cluster, strategy: Strategy) -> int | None:
    """Replay what a run takes of a device with all that its allocator holds; None: unknown.

    ``strategy``: how; it has a formula.
    """
    reserved = predicted_reserved(job, cluster, strategy)
    return None if reserved is None else reserved.told_bytes


def _changed(job: Job, strategy: Strategy) -> Iterator[tuple[str, Strategy]]:
    """Yield which setting is changed, and the strategy with it."""
    yield from _chunked(job, strategy)
    yield from _checkpointed(job, strategy)
    for size in _smaller(job, strategy):
        yield "micro_batch", msgspec.structs.replace(strategy, micro_batch=size)
    if strategy.offload != NO_OFFLOAD:
        yield "offload", msgspec.structs.replace(strategy, offload=NO_OFFLOAD)
    if strategy.pp > 1:
        yield "pp", _without_pipeline(strategy)
    elif strategy.tp == 1 and strategy.dp_shard * strategy.dp_replicate > 1:
        yield from _stages(strategy)


def _chunked(job: Job, strategy: Strategy) -> Iterator[tuple[str, Strategy]]:
    """Yield the loss in more chunks, and in one where it is in several."""
    if not cuts_loss(job, strategy.fused_kernels):
        return
    if strategy.loss_chunks > 1:
        yield "loss in one piece", msgspec.structs.replace(strategy, loss_chunks=1)
    for chunks in CHUNKS:
        if chunks > strategy.loss_chunks:
            yield "loss_chunks", msgspec.structs.replace(strategy, loss_chunks=chunks)


def _checkpointed(job: Job, strategy: Strategy) -> Iterator[tuple[str, Strategy]]:
    """Yield more blocks checkpointed, and none where some are."""
    layers, now = job.model.num_layers, strategy.activation_checkpointing
    if now != "none":
        yield "no checkpointing", msgspec.structs.replace(strategy, activation_checkpointing="none")
    if now == "full":
        return
    for text in ("selective", spell_checkpointing(layers // 2, num_layers=layers), "full"):
        if text != now:
            yield "checkpointing", msgspec.structs.replace(strategy, activation_checkpointing=text)


def _smaller(job: Job, strategy: Strategy) -> list[int]:
    """List smaller micro-batches by which the devices can share the batch out, and one sequence."""
    share = job.global_batch // (strategy.dp_replicate * strategy.dp_shard)
    sizes = [size for size in range(strategy.micro_batch - 1, 0, -1) if not share % size]
    return [*sizes[:MAX_SIZES], *sizes[MAX_SIZES:][-1:]]


def _without_pipeline(strategy: Strategy) -> Strategy:
    shards = strategy.dp_shard * strategy.dp_replicate * strategy.pp
    return msgspec.structs.replace(
        strategy, pp=1, pp_schedule="1f1b", stages_per_device=1, stage_blocks=(), zero=3,
        dp_shard=shards, dp_replicate=1, accumulate=default_accumulate("torch", 3),
    )  # fmt: skip


def _stages(strategy: Strategy) -> Iterator[tuple[str, Strategy]]:
    """Yield the neighbouring stages of ZeRO, and the third, over the same devices."""
    num = strategy.dp_shard * strategy.dp_replicate
    near: set[Zero] = {stage for stage in (0, 1, 2, 3) if abs(stage - strategy.zero) == 1} | {3}
    for zero in sorted(near - {strategy.zero}):
        changed = {"zero": zero, "dp_shard": num if zero else 1, "dp_replicate": 1 if zero else num}
        yield f"zero={zero}", msgspec.structs.replace(strategy, **changed)
