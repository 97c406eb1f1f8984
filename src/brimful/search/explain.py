"""Why a plan won: the runners-up, the rejected with their shortfall, and the ways out."""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from brimful.cost.estimate import estimate, estimate_or_none, tensor_limit_bytes
from brimful.cost.formula import missing_formula
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster, Device, spelled
from brimful.hardware.datasheets import datasheets
from brimful.hardware.gpus import gpus
from brimful.hardware.links import node_links
from brimful.job import Job
from brimful.models.config import parameter_count
from brimful.plan import Plan
from brimful.search.offers import offers
from brimful.search.record import SEARCH_SCHEMA, Considered, Rung, SearchRecord
from brimful.search.table import Table, pareto
from brimful.strategy import Strategy, check_strategy
from brimful.units import format_bytes, format_signed_percent

NUM_RUNNERS_UP = 6
NUM_REJECTED = 6
NUM_FRONTIER = 20
MORE_DEVICES = (2, 4, 8)
"""In one node."""
MAX_WAYS = 3
UNKNOWN_SHORT = 0.5
"""Bytes by which a GPU that does not exist is short: less than any that was counted, since that
there is none says more than by how much the rest is short."""
MIN_SEQ_LEN = 128
"""A way out that shortens sequences below this helps nobody."""


def record(
    table: Table,
    order: NDArray[np.int64],
    *,
    rung: Rung,
    limit_bytes: int,
    strategy: Callable[[int], Strategy],
) -> SearchRecord:
    """Pick the rows worth showing out of a ranked table.

    Runners-up are the best of each other degree, stage of ZeRO and way of cutting the batch and the
    loss, so that they differ in kind; rejected are the fastest that do not fit, one per way. Of the
    few strategies that were simulated, kinds of checkpointing are ways of their own.

    Args:
        table: Every strategy.
        order: Its rows, best first, those that fit before those that do not.
        rung: How its peaks were found.
        limit_bytes: What tensors may take.
        strategy: Makes the strategy of a row.
    """
    fits = table.fits
    fitting = [int(row) for row in order if fits[row]]
    misses = np.flatnonzero(~fits)
    by_time = misses[np.lexsort((table.peak_bytes[misses], np.nan_to_num(table.step_s[misses])))]
    best = int(order[0])
    # Where nothing fits, the nearest misses help more than the fastest ones.
    candidates = by_time if fitting else order

    def way(row: int) -> tuple[int, int, int, bool, str]:
        kind = strategy(row).activation_checkpointing if rung == "simulated" else ""
        return (
            int(table.tp[row]),
            int(table.zero[row]),
            int(table.micro_batch[row]),
            bool(table.loss_chunks[row] > 1),
            kind.partition(":")[0],
        )

    shown = [best, *_one_per_way(fitting, NUM_RUNNERS_UP, way=way, skip=best)]
    rejected = _one_per_way([int(row) for row in candidates], NUM_REJECTED, way=way, skip=best)
    rows = (_considered(table, row, best, limit_bytes, strategy) for row in [*shown, *rejected])
    return SearchRecord(
        schema=SEARCH_SCHEMA,
        rung=rung,
        rows=tuple(rows),
        num_considered=len(order),
        num_fitting=len(fitting),
    )


def frontier(
    table: Table, *, best: int, limit_bytes: int, strategy: Callable[[int], Strategy]
) -> tuple[Considered, ...]:
    """Lay out the Pareto set of time and peak, at most ``NUM_FRONTIER`` of it, ends included.

    Args:
        table: Every strategy.
        best: The row of the plan, with which notes compare.
        limit_bytes: What tensors may take.
        strategy: Makes the strategy of a row.
    """
    rows = pareto(table)
    kept = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), NUM_FRONTIER)).round())
    return tuple(
        _considered(table, int(row), best, limit_bytes, strategy)
        for row in rows[kept.astype(np.int64)]
    )


def _considered(
    table: Table, row: int, best: int, limit_bytes: int, strategy: Callable[[int], Strategy]
) -> Considered:
    return Considered(
        strategy=strategy(row),
        peak_bytes=int(table.peak_bytes[row]),
        step_s=None if np.isnan(table.step_s[row]) else float(table.step_s[row]),
        fits=bool(table.fits[row]),
        note=_note(table, row, best, limit_bytes),
    )


def _one_per_way(
    rows: Iterable[int], num: int, *, way: Callable[[int], Hashable], skip: int
) -> list[int]:
    """Keep the first row of each way to cut batch and loss, the way of ``skip`` taken."""
    seen = {way(skip)}
    kept = []
    for row in rows:
        if way(row) not in seen:
            seen.add(way(row))
            kept.append(row)
    return kept[:num]


def _note(table: Table, row: int, best: int, limit_bytes: int) -> str:
    peak, fits = table.peak_bytes[row], table.fits[row]
    if row == best:
        return "the best that fits" if fits else "nearest to fitting"
    if not fits:
        parts = []
        if peak <= limit_bytes:
            parts.append("what is free lies in pieces")
        if table.step_s[row] < table.step_s[best]:
            parts.append(f"{format_signed_percent(table.step_s[row], table.step_s[best])} time")
        return ", ".join(parts)
    saved = format_bytes(abs(peak - table.peak_bytes[best]))
    words = f"{saved} {'less' if peak < table.peak_bytes[best] else 'more'}"
    if np.isnan(table.step_s[row]):
        return words
    return f"{format_signed_percent(table.step_s[row], table.step_s[best])} time, {words}"


Shortfall = Callable[[Job, Cluster, Strategy], int]
"""Returns by how many bytes a strategy does not fit; 0 or less where it does."""


class WayOut(NamedTuple):
    """Something else that was tried.

    Attributes:
        words: What, and what came of it.
        short_bytes: By how many bytes it does not fit; 0 or less where it does.
        cost: Its predicted device-seconds per token; infinite: unknown.
        is_exact: Whether the same is learnt.
    """

    words: str
    short_bytes: float
    cost: float
    is_exact: bool = False


def ways_out(plan: Plan, *, shortfall: Shortfall) -> tuple[str, ...]:
    """Say what would make a plan fit that does not: each was evaluated, none is advice by rote.

    Args:
        plan: The nearest plan.
        shortfall: Evaluates, by formula or by simulation.

    Returns:
        Of shorter sequences, what the job's owner could allow, a larger GPU, all under the plan's
        own strategy, and more of the same GPU, three: first those that leave what is learnt alone,
        then by device time per token; where fewer fit, those that are short of least follow.
    """
    shorter, larger = _shorter_sequences(plan, shortfall), _larger_gpu(plan, shortfall)
    tried = [shorter, *_allowed(plan, shortfall), larger, _more_gpus(plan)]
    found = [way for way in tried if way is not None]
    fitting = sorted((way for way in found if way.short_bytes <= 0), key=_by_price)
    misses = sorted((way for way in found if way.short_bytes > 0), key=lambda w: w.short_bytes)
    return tuple(way.words for way in [*fitting, *misses][:MAX_WAYS])


def _by_price(way: WayOut) -> tuple[bool, float]:
    return not way.is_exact, way.cost


def shortfall_bytes(job: Job, cluster: Cluster, strategy: Strategy) -> int:
    """Return by how many bytes the predicted peak exceeds what tensors may take.

    Raises:
        UnsupportedError: No formula covers the job.
    """
    peak = estimate(job, cluster, strategy).predicted_peak_allocated_bytes
    return peak - tensor_limit_bytes(cluster)


def _s_per_token(job: Job, cluster: Cluster, strategy: Strategy) -> float:
    """Return the predicted seconds per token; infinite where they are unknown."""
    made = estimate_or_none(job, cluster, strategy)
    if made is None or made.predicted_step_s is None:
        return math.inf
    return made.predicted_step_s / job.tokens_per_step


def _speed(s_per_token: float) -> str:
    return "" if math.isinf(s_per_token) else f", {1 / s_per_token:.4g} tokens/s"


def _shorter_sequences(plan: Plan, shortfall: Shortfall) -> WayOut | None:
    seq_len = plan.job.seq_len // 2
    while seq_len >= MIN_SEQ_LEN:
        job = msgspec.structs.replace(plan.job, seq_len=seq_len)
        short = shortfall(job, plan.cluster, plan.strategy)
        if short <= 0:
            cost = _s_per_token(job, plan.cluster, plan.strategy)
            words = f"--seq-len {seq_len} would fit{_speed(cost)} (it changes what is learnt)"
            return WayOut(words, short, cost * plan.cluster.num_devices)
        seq_len //= 2
    return None


def _allowed(plan: Plan, shortfall: Shortfall) -> Iterator[WayOut]:
    """Try what the owner could allow; by simulation, which takes seconds each, pure bf16 only."""
    for offer in offers(plan.job):
        if plan.estimate is None and not offer.allow.startswith("--precision"):
            continue
        try:
            short = shortfall(offer.job, plan.cluster, plan.strategy)
        except UnsupportedError:
            continue  # no formula covers it
        cost = _s_per_token(offer.job, plan.cluster, plan.strategy)
        fits = f"would fit{_speed(cost)}"
        words = fits if short <= 0 else f"would still be short by {format_bytes(short)}"
        yield WayOut(
            f"{offer.allow} {words} ({offer.price}: it changes what is learnt)",
            short,
            cost * plan.cluster.num_devices,
        )


def _larger_gpu(plan: Plan, shortfall: Shortfall) -> WayOut:
    """Try as many of every larger GPU, smallest first."""
    by_size = sorted(gpus().values(), key=lambda device: device.usable_bytes)
    for device in by_size:
        cluster = _with_gpu(plan.cluster, device)
        try:
            short = shortfall(plan.job, cluster, plan.strategy)
        except UnsupportedError:
            continue  # its kernels are not known, or it cannot run this attention
        if short <= 0 and not _emulates(plan.job, device):
            cost = _s_per_token(plan.job, cluster, plan.strategy)
            words = "is the smallest known GPU on which this strategy fits"
            spent = cost * cluster.num_devices
            return WayOut(
                f"--gpus {spelled(cluster)} {words}{_speed(cost)}", short, spent, is_exact=True
            )
    return WayOut(_no_gpu(plan), UNKNOWN_SHORT, math.inf)


def _more_gpus(plan: Plan) -> WayOut | None:
    """Try more of the same GPU in a node, states sharded over all (ZeRO-3)."""
    if plan.estimate is None or plan.cluster.num_nodes > 1:
        return None
    for number in MORE_DEVICES:
        cluster = _with_devices(plan.cluster, number)
        degrees = {"zero": 3, "dp_replicate": 1, "dp_shard": number, "tp": 1}
        strategy = msgspec.structs.replace(plan.strategy, **degrees)
        if number <= plan.cluster.num_devices or missing_formula(
            plan.job, strategy, cluster.device
        ):
            continue
        try:
            check_strategy(plan.job, strategy)
        except (InputError, UnsupportedError):
            continue  # the batch cannot be split over so many
        short = shortfall_bytes(plan.job, cluster, strategy)
        if short <= 0:
            cost = _s_per_token(plan.job, cluster, strategy)
            words = f"--gpus {spelled(cluster)} --zero 3 would fit{_speed(cost)}"
            return WayOut(words, short, number * cost, is_exact=True)
    return None


def _with_devices(cluster: Cluster, number: int) -> Cluster:
    """Return a node of so many of a cluster's GPUs, by their fastest link."""
    sheet = datasheets().get(cluster.device.name)
    link = node_links(sheet)[0].name if sheet and number > 1 else ""
    return msgspec.structs.replace(
        cluster, num_devices=number, num_nodes=1, devices_per_node=number, link=link
    )


def _with_gpu(cluster: Cluster, device: Device) -> Cluster:
    """Return a cluster of as many devices of another kind, by the fastest link that those have."""
    link = node_links(datasheets()[device.name])[0].name if cluster.devices_per_node > 1 else ""
    return msgspec.structs.replace(
        cluster,
        name=device.name,
        device=device,
        host_ram_bytes=0,
        link=link,
        memory_limit_bytes=0,
    )


def _no_gpu(plan: Plan) -> str:
    need = "it needs more devices"
    if plan.estimate is not None:
        total = parameter_count(plan.job.model).total
        need = f"{total / 1e9:.1f} B parameters need more devices"
    num = plan.cluster.num_devices
    who = "no single known GPU holds" if num == 1 else f"no {num} of any known GPU hold"
    return f"{who} it: {need}"


def _emulates(job: Job, device: Device) -> bool:
    """Whether a GPU has no units for the recipe's type: it would fit, and crawl."""
    return job.precision.startswith("bf16") and not device.matrix_flops_per_s.bf16
