"""The space of strategies for a job on a number of devices."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple, TypedDict, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from brimful.cost.family import Family, body_of
from brimful.cost.profiles import NUM_CHUNKS, Body, is_shipped
from brimful.cost.programs import Kernels, program_of
from brimful.errors import InputError, UnsupportedError
from brimful.job import Job
from brimful.search.grid import Grid
from brimful.strategy import (
    Accumulate,
    Attention,
    Recompute,
    Strategy,
    Zero,
    check_spread,
    check_strategy,
    num_checkpointed,
    placed,
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
        zero: Which states are sharded.
        dp_replicate: Groups of devices that each hold a whole model.
        dp_shard: Devices that share one copy.
        accumulate: What happens to gradients between micro-batches.
        tp: Devices that share every matrix.
        pp: Stages of a pipeline.
    """

    micro_batch: int | None = None
    activation_checkpointing: str | None = None
    loss_chunks: int | None = None
    zero: Zero | None = None
    dp_replicate: int | None = None
    dp_shard: int | None = None
    accumulate: Accumulate | None = None
    tp: int | None = None
    pp: int | None = None


def possible(job: Job, choices: Sequence[Pins], num_devices: int) -> list[Pins]:
    """Leave out what cannot run the job where something else can.

    Args:
        job: What is trained.
        choices: At least one.
        num_devices: Of the cluster.

    Raises:
        InputError: Nothing can; says why the first cannot.
        UnsupportedError: The same, in this version.
    """
    found, refused = [], None
    for pins in choices:
        try:
            check_strategy(job, placed(pinned_strategy(pins, "sdpa", num_devices), num_devices))
            found.append(pins)
        except (InputError, UnsupportedError) as error:
            refused = refused or error
    if not found and refused is not None:
        raise refused
    return found


class Spread(NamedTuple):
    """A way of spreading a model over devices, but for the number of shards.

    Attributes:
        zero: Which states are sharded.
        accumulate: What happens to gradients between micro-batches.
        num_shards: Numbers of devices that may share one copy.
    """

    zero: Zero
    accumulate: Accumulate
    num_shards: tuple[int, ...]


def grids(
    job: Job, pins: Pins, *, attention: Attention, kernels: Kernels, num_devices: int
) -> Iterator[Grid]:
    """Yield every strategy that can run the job, those that run the same events together.

    Micro-batches divide what a device sees of the global batch; chunks of the loss divide a
    micro-batch's tokens, so that every chunk is of one size; any number of blocks may be
    checkpointed, in full or selectively where that was traced; states may be sharded over any
    divisor of the devices.

    Raises:
        InputError: A pinned value cannot run this job.
        UnsupportedError: The same, in this version.
    """
    # Sharded by default; what this version does not run so may still be run whole.
    possible(job, [pins] if pins.zero is not None else [pins, pins._replace(zero=0)], num_devices)
    for spread, recompute in product(_spreads(job, pins, num_devices), RECOMPUTES):
        gathers = spread.zero in {2, 3}
        program = program_of(job, attention, kernels, recompute, gathers=gathers)
        if not is_shipped(program.key):
            continue
        for batches in _alike(job, pins, spread, num_devices):
            for body, num_blocks in _bodies(job, pins, recompute):
                members = tuple(
                    Family(micro_batch, chunks, body, num_blocks, recompute, spread.zero,
                           num_devices, 1, spread.accumulate)
                    for micro_batch, chunks in batches
                )  # fmt: skip
                yield Grid(members, num_blocks, np.array(spread.num_shards))


def _alike(
    job: Job, pins: Pins, spread: Spread, num_devices: int
) -> Iterator[list[tuple[int, int]]]:
    """Yield micro-batches with chunks of the loss, those whose steps have the same events together.

    The steps differ in whether there is a second micro-batch (and a third, where gradients are
    held), and up to five chunks. Of one micro-batch nothing is held.
    """
    alike: dict[tuple[int, int], list[tuple[int, int]]] = {}
    share = job.global_batch // num_devices
    for micro_batch, chunks in product(micro_batches(job, pins, num_devices), _chunks(pins)):
        tokens = micro_batch * job.seq_len
        if tokens % chunks and pins.loss_chunks is None:
            continue
        is_left = pins.accumulate is None and num_devices > 1
        if is_left and spread.accumulate == "hold" and share == micro_batch:
            continue
        real = -(-tokens // -(-tokens // chunks))
        num_alike = min(share // micro_batch, 3 if spread.accumulate == "hold" else 2)
        alike.setdefault((num_alike, min(real, NUM_CHUNKS)), []).append((micro_batch, chunks))
    yield from alike.values()


def _spreads(job: Job, pins: Pins, num_devices: int) -> Iterator[Spread]:
    """Yield the ways of spreading that this version runs for the job, one number of devices."""
    if num_devices == 1:
        yield Spread(0, "reduce-each", (1,))
        return
    for zero, accumulate in product(get_args(Zero), get_args(Accumulate)):
        if (pins.zero, pins.accumulate) not in product((None, zero), (None, accumulate)):
            continue
        shards = [
            n for n in range(1, num_devices + 1)
            if num_devices % n == 0
            and _is_wanted(pins, num_devices // n, n)
            and _is_possible(job, zero, num_devices // n, n)
        ]  # fmt: skip
        if shards:
            yield Spread(zero, accumulate, tuple(shards))


def _is_wanted(pins: Pins, replicas: int, shards: int) -> bool:
    return pins.dp_shard in {None, shards} and pins.dp_replicate in {None, replicas}


def _is_possible(job: Job, zero: Zero, replicas: int, shards: int) -> bool:
    """Whether this version runs a job so spread."""
    plain = pinned_strategy(Pins(), "sdpa")
    spread = {"zero": zero, "dp_shard": shards, "dp_replicate": replicas}
    try:
        check_spread(job, msgspec.structs.replace(plain, **spread))
    except (InputError, UnsupportedError):
        return False
    return True


def pinned_strategy(pins: Pins, attention: Attention, num_devices: int = 1) -> Strategy:
    """Return the plainest strategy that has what the user fixed."""
    return Strategy(
        micro_batch=1 if pins.micro_batch is None else pins.micro_batch,
        activation_checkpointing=(
            "none" if pins.activation_checkpointing is None else pins.activation_checkpointing
        ),
        loss_chunks=1 if pins.loss_chunks is None else pins.loss_chunks,
        attention=attention,
        accumulate=pins.accumulate or "reduce-each",
        tp=pins.tp or 1,
        pp=pins.pp or 1,
        **_pinned_degrees(pins, num_devices),
    )


class _Degrees(TypedDict):
    zero: Zero
    dp_replicate: int
    dp_shard: int


def _pinned_degrees(pins: Pins, num_devices: int) -> _Degrees:
    """Spread over as many devices as there are: in one group, unless something else is said."""
    whole = num_devices == 1 or pins.dp_shard == 1 or pins.dp_replicate == num_devices
    zero: Zero = (0 if whole else 3) if pins.zero is None else pins.zero
    if pins.dp_shard is not None:
        replicas = pins.dp_replicate or max(1, num_devices // pins.dp_shard)
        return {"zero": zero, "dp_replicate": replicas, "dp_shard": pins.dp_shard}
    replicas = pins.dp_replicate or (num_devices if zero == 0 else 1)
    shards = 1 if zero == 0 else max(1, num_devices // replicas)
    return {"zero": zero, "dp_replicate": replicas, "dp_shard": shards}


def micro_batches(job: Job, pins: Pins, num_devices: int = 1) -> list[int]:
    """List the micro-batches that divide a device's share, smallest first, or the pinned one."""
    if pins.micro_batch is not None:
        return [pins.micro_batch]
    share = job.global_batch // num_devices
    return [n for n in range(1, min(share, MAX_MICRO_BATCH) + 1) if share % n == 0]


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
