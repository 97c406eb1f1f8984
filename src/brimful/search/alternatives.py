"""What each switch of a plan does at its other values, everything else as in the plan."""

from collections.abc import Iterator
from typing import Any

import msgspec

from brimful.cost.estimate import estimate
from brimful.hardware.cluster import Cluster
from brimful.search.ledger import Point, highest_phase, item_changes, predict
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.units import format_bytes, format_signed_percent
from brimful.values.job import Job
from brimful.values.plan import Estimate
from brimful.values.strategy import Strategy


class Alternative(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plan with one switch at another value.

    Attributes:
        setting: The switch and its value, as people type it: ``loss_chunks=1``.
        strategy: The whole strategy.
        peak_bytes: Its predicted peak.
        step_s: Its predicted seconds per step; None: unknown.
        fits: Whether it fits.
        words: By how much it is short, in which phase and because of what; or what it costs.
    """

    setting: str
    strategy: Strategy
    peak_bytes: int
    step_s: float | None
    fits: bool
    words: str


def alternatives(job: Job, cluster: Cluster, strategy: Strategy) -> tuple[Alternative, ...]:
    """Estimate a plan with one switch changed at a time.

    Values that cannot run the job, or that no formula covers, are left out.

    Raises UnsupportedError: no formula covers the plan.
    """
    plan = estimate(job, cluster, strategy)
    found = []
    for setting, other in _others(job, strategy):
        made = predict(Point(job, other), cluster)
        if isinstance(made, Estimate):
            found.append(_alternative(setting, other, made, plan))
    return tuple(found)


def _others(job: Job, strategy: Strategy) -> Iterator[tuple[str, Strategy]]:
    for field, value in _values(job, strategy):
        if getattr(strategy, field) != value:
            changed = msgspec.structs.replace(strategy, **{field: value})
            yield f"{field}={value}", changed


def _values(job: Job, strategy: Strategy) -> Iterator[tuple[str, Any]]:
    yield from (("attention", name) for name in ("eager", "sdpa"))
    yield from (("activation_checkpointing", name) for name in ("none", "selective", "full"))
    yield "loss_chunks", 1
    yield from (("fused_kernels", name) for name in ("none", "liger"))
    yield "offload", NO_OFFLOAD
    yield from (("micro_batch", n) for n in _neighbours(job, strategy))
    if strategy.dp_shard > 1:
        yield from (("zero", stage) for stage in range(4))
    if strategy.pp > 1:
        yield from (("pp_schedule", order) for order in ("1f1b", "gpipe"))
    if job.global_batch > strategy.micro_batch * strategy.dp_replicate * strategy.dp_shard:
        yield from (("accumulate", name) for name in ("reduce-each", "hold") if strategy.zero)


def _neighbours(job: Job, strategy: Strategy) -> Iterator[int]:
    """Yield the next smaller and the next larger micro-batch that the devices can share out."""
    share = job.global_batch // (strategy.dp_replicate * strategy.dp_shard)
    smaller = [n for n in range(1, strategy.micro_batch) if share % n == 0]
    larger = range(strategy.micro_batch + 1, share + 1)
    yield from smaller[-1:]
    yield from [n for n in larger if share % n == 0][:1]


def _alternative(setting: str, other: Strategy, made: Estimate, plan: Estimate) -> Alternative:
    return Alternative(
        setting=setting,
        strategy=other,
        peak_bytes=made.predicted_peak_allocated_bytes,
        step_s=made.predicted_step_s,
        fits=made.fits,
        words=_compared(made, plan) if made.fits else what_killed(made, plan),
    )


def what_killed(made: Estimate, plan: Estimate) -> str:
    """Say by how much a run is short, where, and which item outgrew the plan's most."""
    short = format_bytes(made.predicted_peak_allocated_bytes - made.usable_bytes)
    name, grown = max(item_changes(plan, made), key=lambda pair: pair[1])
    because = f", {name} {format_bytes(grown)} larger" if grown > 0 else ""
    return f"short by {short} in {highest_phase(made).where}{because}{_time(made, plan)}"


def _compared(made: Estimate, plan: Estimate) -> str:
    delta = made.predicted_peak_allocated_bytes - plan.predicted_peak_allocated_bytes
    size = f"{format_bytes(abs(delta))} {'more' if delta > 0 else 'less'}"
    return f"fits, {size}{_time(made, plan)}"


def _time(made: Estimate, plan: Estimate) -> str:
    if made.predicted_step_s is None or plan.predicted_step_s is None:
        return ""
    return f", {format_signed_percent(made.predicted_step_s, plan.predicted_step_s)} time"
