"""The table of a search: one row per strategy, in columns, and its order."""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.job import Job
from brimful.strategy import Attention, Strategy, spell_checkpointing

Objective = Literal["time", "memory"]
TIE = 0.005
"""Predicted times closer than this share are the same; the smaller peak then wins."""


class Table(NamedTuple):
    """Strategies, one row each, and what was predicted, or simulated, for each.

    Attributes:
        micro_batch: [strategies].
        loss_chunks: [strategies].
        num_blocks: [strategies], checkpointed.
        peak_bytes: [strategies].
        step_s: [strategies]; NaN where the rates are unknown.
        fits: [strategies].
    """

    micro_batch: NDArray[np.int64]
    loss_chunks: NDArray[np.int64]
    num_blocks: NDArray[np.int64]
    peak_bytes: NDArray[np.float64]
    step_s: NDArray[np.float64]
    fits: NDArray[np.bool_]


def rank(table: Table, *, objective: Objective) -> NDArray[np.int64]:
    """Order the rows: those that fit before those that do not, best first.

    Among those that fit the objective decides; times within ``TIE`` of each other count as equal
    and the smaller peak wins. Those that do not fit are ordered by how much they are short.
    """
    misses = ~table.fits
    time = np.nan_to_num(table.step_s, nan=0.0)
    rounded = np.round(np.log(np.maximum(time, 1e-12)) / np.log1p(TIE))
    first = table.peak_bytes if objective == "memory" else rounded
    return np.lexsort((table.peak_bytes, np.where(misses, table.peak_bytes, first), misses))


def strategy_at(job: Job, table: Table, row: int, attention: Attention) -> Strategy:
    """Make the strategy of one row."""
    return Strategy(
        micro_batch=int(table.micro_batch[row]),
        activation_checkpointing=spell_checkpointing(
            int(table.num_blocks[row]), num_layers=job.model.num_layers
        ),
        loss_chunks=int(table.loss_chunks[row]),
        attention=attention,
    )
