"""The space of strategies for a job on one device."""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.family import Family, body_of
from brimful.cost.profiles import Body, is_shipped
from brimful.cost.programs import Kernels, program_of
from brimful.job import Job
from brimful.strategy import (
    Attention,
    Recompute,
    Strategy,
    check_strategy,
    num_checkpointed,
    recompute_of,
)

MAX_MICRO_BATCH = 1024
CHUNKS = (1, 2, 4, 8, 16, 32)
RECOMPUTES: tuple[Recompute, ...] = ("full", "selective")


class Pins(NamedTuple):
    """What the user fixed; None leaves it to the search.

    Attributes:
        micro_batch: Sequences per forward pass.
        activation_checkpointing: ``none``, ``full``, ``full:K`` or ``selective``.
        loss_chunks: Pieces of the loss.
    """

    micro_batch: int | None
    activation_checkpointing: str | None
    loss_chunks: int | None


def families(job: Job, pins: Pins, *, attention: Attention, kernels: Kernels) -> Iterator[Family]:
    """Yield every family of strategies that can run the job.

    Micro-batches divide the global batch; chunks of the loss divide a micro-batch's tokens, so that
    every chunk is of one size; any number of blocks may be checkpointed, in full or selectively
    where that was traced.

    Raises:
        InputError: A pinned value cannot run this job.
    """
    check_strategy(job, pinned_strategy(pins, attention))
    for micro_batch, chunks in product(micro_batches(job, pins), _chunks(pins)):
        if micro_batch * job.seq_len % chunks and pins.loss_chunks is None:
            continue
        for recompute in RECOMPUTES:
            if not is_shipped(program_of(job, attention, kernels, recompute).key):
                continue
            for body, num_blocks in _bodies(job, pins, recompute):
                yield Family(micro_batch, chunks, body, num_blocks, recompute)


def pinned_strategy(pins: Pins, attention: Attention) -> Strategy:
    """Return the plainest strategy that has what the user fixed."""
    return Strategy(
        micro_batch=1 if pins.micro_batch is None else pins.micro_batch,
        activation_checkpointing=(
            "none" if pins.activation_checkpointing is None else pins.activation_checkpointing
        ),
        loss_chunks=1 if pins.loss_chunks is None else pins.loss_chunks,
        attention=attention,
    )


def micro_batches(job: Job, pins: Pins) -> list[int]:
    """List the micro-batches that divide the global batch, smallest first, or the pinned one."""
    if pins.micro_batch is not None:
        return [pins.micro_batch]
    largest = min(job.global_batch, MAX_MICRO_BATCH)
    return [n for n in range(1, largest + 1) if job.global_batch % n == 0]


def _chunks(pins: Pins) -> tuple[int, ...]:
    return CHUNKS if pins.loss_chunks is None else (pins.loss_chunks,)


def _bodies(job: Job, pins: Pins, recompute: Recompute) -> list[tuple[Body, NDArray[np.int64]]]:
    """List bodies with their counts of checkpointed blocks; none is ``full`` by convention."""
    num_layers = job.model.num_layers
    if pins.activation_checkpointing is not None:
        return _pinned_body(pins.activation_checkpointing, num_layers, recompute)
    every: list[tuple[Body, NDArray[np.int64]]] = [
        ("plain", np.array([0] if recompute == "full" else [], dtype=np.int64)),
        ("mixed", np.arange(1, num_layers)),
        ("checkpointed", np.array([num_layers])),
    ]
    return [(body, blocks) for body, blocks in every if len(blocks)]


def _pinned_body(
    text: str, num_layers: int, recompute: Recompute
) -> list[tuple[Body, NDArray[np.int64]]]:
    pinned = Strategy(micro_batch=1, activation_checkpointing=text, loss_chunks=1, attention="sdpa")
    blocks = num_checkpointed(pinned, num_layers=num_layers)
    if recompute != (recompute_of(pinned) if blocks else "full"):
        return []
    return [(body_of(blocks, num_layers), np.array([blocks]))]
