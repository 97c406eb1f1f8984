"""Why a plan won: the runners-up, the rejected with their shortfall, and the ways out."""

from collections.abc import Callable, Hashable, Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from brimful.cost.estimate import allocatable_bytes, estimate
from brimful.errors import UnsupportedError
from brimful.hardware.cluster import Cluster, Device
from brimful.hardware.gpus import gpus
from brimful.job import Job
from brimful.models.config import parameter_count
from brimful.plan import Plan
from brimful.search.record import SEARCH_SCHEMA, Considered, Rung, SearchRecord
from brimful.search.table import Table
from brimful.strategy import Strategy
from brimful.units import format_bytes, format_signed_percent

NUM_RUNNERS_UP = 6
NUM_REJECTED = 6
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

    Runners-up are the best of each other way of cutting the batch and the loss, so that they differ
    in kind; rejected are the fastest that do not fit, one per way. Of the few strategies that were
    simulated, kinds of checkpointing are ways of their own.

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

    def way(row: int) -> tuple[int, bool, str]:
        kind = strategy(row).activation_checkpointing if rung == "simulated" else ""
        return (
            int(table.micro_batch[row]),
            bool(table.loss_chunks[row] > 1),
            kind.partition(":")[0],
        )

    shown = [best, *_one_per_way(fitting, NUM_RUNNERS_UP, way=way, skip=best)]
    rejected = _one_per_way([int(row) for row in candidates], NUM_REJECTED, way=way, skip=best)
    rows = (
        Considered(
            strategy=strategy(row),
            peak_bytes=int(table.peak_bytes[row]),
            step_s=None if np.isnan(table.step_s[row]) else float(table.step_s[row]),
            fits=bool(fits[row]),
            note=_note(table, row, best, limit_bytes),
        )
        for row in [*shown, *rejected]
    )
    return SearchRecord(
        schema=SEARCH_SCHEMA,
        rung=rung,
        rows=tuple(rows),
        num_considered=len(order),
        num_fitting=len(fitting),
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


def ways_out(plan: Plan, *, shortfall: Shortfall) -> tuple[str, ...]:
    """Say what would make a plan fit that does not: each was evaluated, none is advice by rote.

    Args:
        plan: The nearest plan.
        shortfall: Evaluates, by formula or by simulation.

    Returns:
        At most three sentences: shorter sequences, another recipe, a larger GPU.
    """
    ways = (_shorter_sequences, _lighter_recipe, _larger_gpu)
    found = (way(plan, shortfall) for way in ways)
    return tuple(sentence for sentence in found if sentence)


def shortfall_bytes(job: Job, cluster: Cluster, strategy: Strategy) -> int:
    """Return by how many bytes the predicted peak exceeds what tensors may take.

    Raises:
        UnsupportedError: No formula covers the job.
    """
    peak = estimate(job, cluster, strategy).predicted_peak_allocated_bytes
    return peak - allocatable_bytes(cluster.device)


def _shorter_sequences(plan: Plan, shortfall: Shortfall) -> str:
    seq_len = plan.job.seq_len // 2
    while seq_len >= MIN_SEQ_LEN:
        job = msgspec.structs.replace(plan.job, seq_len=seq_len)
        if shortfall(job, plan.cluster, plan.strategy) <= 0:
            return f"--seq-len {seq_len} would fit (it changes what is learnt)"
        seq_len //= 2
    return ""


def _lighter_recipe(plan: Plan, shortfall: Shortfall) -> str:
    if plan.job.precision in {"bf16", "fp16"}:
        return ""
    job = msgspec.structs.replace(plan.job, precision="bf16", loss_scale=None)
    short = shortfall(job, plan.cluster, plan.strategy)
    words = "would fit" if short <= 0 else f"would still be short by {format_bytes(short)}"
    return f"--precision bf16 {words} (no fp32 master weights: it changes what is learnt)"


def _larger_gpu(plan: Plan, shortfall: Shortfall) -> str:
    by_size = sorted(gpus().values(), key=lambda device: device.usable_bytes)
    for device in by_size:
        cluster = Cluster(name=device.name, device=device, num_devices=1, host_ram_bytes=0)
        try:
            fits = shortfall(plan.job, cluster, plan.strategy) <= 0
        except UnsupportedError:
            continue  # its kernels are not known, or it cannot run this attention
        if fits and not _emulates(plan.job, device):
            return f"--gpus {device.name} is the smallest known GPU on which this strategy fits"
    need = "it needs several devices"
    if plan.estimate is not None:
        total = parameter_count(plan.job.model).total
        need = f"{total / 1e9:.1f} B parameters need several devices"
    return f"no single known GPU holds it: {need}"


def _emulates(job: Job, device: Device) -> bool:
    """Whether a GPU has no units for the recipe's type: it would fit, and crawl."""
    return job.precision.startswith("bf16") and not device.matrix_flops_per_s.bf16
