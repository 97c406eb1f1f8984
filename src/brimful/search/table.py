"""The table of a search: one row per strategy, in columns, and its order."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from brimful.techniques.offload import NONE, OPTIMIZER, PARAMETERS
from brimful.techniques.parallel.stages import Schedule
from brimful.values.job import Job
from brimful.values.strategy import (
    RECOMPUTES,
    Attention,
    Reference,
    Strategy,
    Zero,
    data_parallel,
    num_checkpointed,
    recompute_of,
    spell_checkpointing,
)

Objective = Literal["time", "cost", "memory"]
"""What to make least; on given devices the fastest is the cheapest."""
TIE = 1e-6
"""Predicted times closer than this share differ by rounding alone; the smaller peak then wins."""


ORDERS: tuple[Schedule, ...] = get_args(Schedule)
"""Every order of work of a pipeline, by number; where there is none it is 1F1B."""


class Table(NamedTuple):
    """Strategies, one row each, and what was predicted, or simulated, for each.

    Attributes:
        micro_batch: [strategies].
        loss_chunks: [strategies].
        num_blocks: [strategies], checkpointed.
        recompute: [strategies], what of those is computed again, as its place in ``RECOMPUTES``.
        zero: [strategies], which states are sharded.
        num_shards: [strategies], devices that share one copy of them.
        tp: [strategies], devices that share every matrix.
        ep: [strategies], devices that part the experts of a block.
        num_data_parallel: [strategies], devices, or groups of them, that see different samples.
        holds: [strategies], whether whole gradients are held until the last micro-batch.
        pp: [strategies], devices in a row.
        schedule: [strategies], their order of work, by its place in ``ORDERS``.
        stages: [strategies], stages on each device.
        offloads: [strategies], what is on the host, as its place in ``OFFLOADS``.
        peak_bytes: [strategies].
        step_s: [strategies]; NaN where the rates are unknown.
        fits: [strategies].
    """

    micro_batch: NDArray[np.int64]
    loss_chunks: NDArray[np.int64]
    num_blocks: NDArray[np.int64]
    recompute: NDArray[np.int64]
    zero: NDArray[np.int64]
    num_shards: NDArray[np.int64]
    tp: NDArray[np.int64]
    ep: NDArray[np.int64]
    num_data_parallel: NDArray[np.int64]
    holds: NDArray[np.bool_]
    pp: NDArray[np.int64]
    schedule: NDArray[np.int64]
    stages: NDArray[np.int64]
    offloads: NDArray[np.int64]
    peak_bytes: NDArray[np.float64]
    step_s: NDArray[np.float64]
    fits: NDArray[np.bool_]


OFFLOADS = (NONE, OPTIMIZER, PARAMETERS)
"""What is searched of what may be on the host, the least first."""
_NAMES = Table._fields


def columns_of(strategies: Sequence[Strategy], *, num_layers: int) -> dict[str, NDArray[Any]]:
    """Return the columns of a table that say which strategies there are.

    ``strategies``: one per row.
    """
    return {
        "micro_batch": np.array([s.micro_batch for s in strategies]),
        "loss_chunks": np.array([s.loss_chunks for s in strategies]),
        "num_blocks": np.array([num_checkpointed(s, num_layers=num_layers) for s in strategies]),
        "recompute": np.array([RECOMPUTES.index(recompute_of(s)) for s in strategies]),
        "zero": np.array([s.zero for s in strategies]),
        "num_shards": np.array([s.dp_shard for s in strategies]),
        "tp": np.array([s.tp for s in strategies]),
        "ep": np.array([s.ep for s in strategies]),
        "num_data_parallel": np.array([data_parallel(s) for s in strategies]),
        "holds": np.array([s.accumulate == "hold" for s in strategies]),
        "pp": np.array([s.pp for s in strategies]),
        "schedule": np.array([ORDERS.index(s.pp_schedule) for s in strategies]),
        "stages": np.array([s.stages_per_device for s in strategies]),
        "offloads": np.array([_place_of(s.offload) for s in strategies], dtype=np.int64),
    }


def _place_of(offload: str) -> int:
    """Return the place in ``OFFLOADS``; what is not searched, and was asked for, is behind all."""
    return OFFLOADS.index(offload) if offload in OFFLOADS else len(OFFLOADS)


def empty_table() -> Table:
    """Return a table without rows."""
    flags = {"holds", "fits"}
    real = {"peak_bytes", "step_s"}
    kinds = [np.bool_ if n in flags else np.float64 if n in real else np.int64 for n in _NAMES]
    columns: list[NDArray[Any]] = [np.array([], dtype=kind) for kind in kinds]
    return Table(*columns)


def joined(tables: Sequence[Table]) -> Table:
    """Return the rows of several tables."""
    columns: Iterable[NDArray[Any]] = map(np.concatenate, zip(*tables, strict=True))
    return Table(*columns)


def rank(table: Table, *, objective: Objective) -> NDArray[np.int64]:
    """Order the rows, best first.

    1. Those that fit before those that do not.
    2. Of those that fit, what the objective makes least: the time, on a scale of which ``TIE`` is
       one step, or the peak. Where any rate is unknown, less work stands for less time
       (``_by_work``: the simpler strategy).
    3. Of equals the smaller peak. Of those that do not fit this comes first: the least shortfall.
    4. Of equal peaks the shorter time, and at last the order of the table.
    """
    order = _by_work(table) if np.isnan(table.step_s).any() else _by_time(table)
    peak = table.peak_bytes
    first = peak if objective == "memory" else order
    fitting, misses = np.flatnonzero(table.fits), np.flatnonzero(~table.fits)
    return np.concatenate([
        fitting[np.lexsort((order[fitting], peak[fitting], first[fitting]))],
        misses[np.lexsort((order[misses], peak[misses]))],
    ])  # fmt: skip


def _by_time(table: Table) -> NDArray[np.float64]:
    """Return the times on a scale of which ``TIE`` is one step."""
    steps: NDArray[np.float64] = np.log(np.maximum(table.step_s, 1e-12)) / np.log1p(TIE)
    return np.round(steps)


def _by_work(table: Table) -> NDArray[np.float64]:
    """Number the rows by work: fewer products recomputed, larger micro-batches, fewer chunks.

    Before all that comes what is copied to the host and updated there.
    Then by what is sent: matrices cut over fewer devices, lower stages of ZeRO, held gradients,
    fewer shards. What selective
    checkpointing recomputes is no product; it counts after everything that is.
    """
    whole = np.where(table.recompute > 0, 0, table.num_blocks)
    keys = np.stack([
        table.offloads, whole, table.num_blocks, -table.micro_batch, table.loss_chunks, table.pp,
        table.tp, table.ep, table.zero, ~table.holds, table.num_shards, table.schedule,
        table.stages,
    ])  # fmt: skip
    places = np.unique(keys, axis=1, return_inverse=True)[1]
    return places.reshape(-1).astype(np.float64)


def pareto(table: Table) -> NDArray[np.int64]:
    """Return the rows that fit and that no other beats in both time and peak, fastest first.

    Empty where times are unknown.
    """
    fitting = np.flatnonzero(table.fits & ~np.isnan(table.step_s))
    order = fitting[np.lexsort((table.peak_bytes[fitting], table.step_s[fitting]))]
    peaks = table.peak_bytes[order]
    before = np.concatenate([[np.inf], np.minimum.accumulate(peaks)[:-1]])
    return order[peaks < before[: len(order)]]


def strategy_at(
    job: Job, table: Table, row: int, attention: Attention, reference: Reference = "none"
) -> Strategy:
    """Make the strategy of one row.

    ``reference``: where a preference task's reference is, in all of them.
    """
    return Strategy(
        micro_batch=int(table.micro_batch[row]),
        activation_checkpointing=spell_checkpointing(
            int(table.num_blocks[row]),
            num_layers=job.model.num_layers,
            recompute=RECOMPUTES[int(table.recompute[row])],
        ),
        loss_chunks=int(table.loss_chunks[row]),
        attention=attention,
        zero=cast("Zero", int(table.zero[row])),
        dp_replicate=int(table.num_data_parallel[row] // table.num_shards[row]),
        dp_shard=int(table.num_shards[row]),
        tp=int(table.tp[row]),
        ep=int(table.ep[row]),
        pp=int(table.pp[row]),
        pp_schedule=ORDERS[int(table.schedule[row])],
        stages_per_device=int(table.stages[row]),
        accumulate="hold" if table.holds[row] else "reduce-each",
        reference=reference,
        offload=OFFLOADS[int(table.offloads[row])],
    )
