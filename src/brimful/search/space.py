"""The space of strategies for a job on one device."""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from brimful.cost.family import Family
from brimful.cost.profiles import Body
from brimful.job import Job
from brimful.strategy import Attention, Strategy, check_strategy, num_checkpointed

MAX_MICRO_BATCH = 1024
CHUNKS = (1, 2, 4, 8, 16, 32)


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


def families(job: Job, pins: Pins, *, attention: Attention) -> Iterator[Family]:
    """Yield every family of strategies that can run the job.

    Micro-batches divide the global batch; chunks of the loss divide a micro-batch's tokens, so that
    every chunk is of one size; any number of blocks may be checkpointed.

    Raises:
        InputError: A pinned value cannot run this job.
    """
    check_strategy(job, pinned_strategy(pins, attention))
    for micro_batch, chunks in product(micro_batches(job, pins), _chunks(pins)):
        if micro_batch * job.seq_len % chunks and pins.loss_chunks is None:
            continue
        for body, num_blocks in _bodies(job, pins):
            yield Family(micro_batch, chunks, body, num_blocks)


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


def _bodies(
    job: Job, pins: Pins
) -> list[tuple[Body, "np.ndarray[tuple[int], np.dtype[np.int64]]"]]:
    num_layers = job.model.num_layers
    between = np.arange(1, num_layers)
    if pins.activation_checkpointing is None:
        every = [
            ("plain", np.array([0])),
            ("mixed", between),
            ("checkpointed", np.array([num_layers])),
        ]
        return [(body, blocks) for body, blocks in every if len(blocks)]  # type: ignore[misc]
    pinned = Strategy(
        micro_batch=1,
        activation_checkpointing=pins.activation_checkpointing,
        loss_chunks=1,
        attention="sdpa",
    )
    blocks = num_checkpointed(pinned, num_layers=num_layers)
    body: Body = "plain" if blocks == 0 else "checkpointed" if blocks == num_layers else "mixed"
    return [(body, np.array([blocks]))]
