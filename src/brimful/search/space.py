"""The space of strategies for a job on a number of devices."""

from collections.abc import Container, Iterator, Sequence
from itertools import product

import msgspec
import numpy as np
from numpy.typing import NDArray

from brimful.cost.family import Family, bodies_of, chunk_of
from brimful.cost.own_programs import (
    SHIPPED_AGAIN,
    Need,
    chosen_program,
    is_foreseen,
    traced_chunks,
    traced_program,
)
from brimful.cost.profiles import NUM_CHUNKS, Body, differs_for_one, load_profile, variant_key
from brimful.cost.programs import Kernels, kernels_of
from brimful.cost.trained import untied_job
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster, Device
from brimful.models.traced import is_one_unit
from brimful.search.grid_values import Grid
from brimful.search.pins import (
    Pins,
    asks_for_row,
    fsdp_of,
    fused_of,
    micro_batches,
    pinned_strategy,
)
from brimful.search.spreads import Spread, expert_degrees, spreads_of, tensor_degrees
from brimful.techniques.exact import exactness
from brimful.techniques.fused_kernels import FusedKernels, fused_head
from brimful.techniques.kernel_support import first_that_runs
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.techniques.offload import Away, away_in
from brimful.techniques.runnable import check_spread, check_strategy, placed
from brimful.values.job import OVER_TOKENS, Job
from brimful.values.strategy import (
    DEFAULT_FSDP,
    Attention,
    Recompute,
    Strategy,
    Zero,
    data_parallel,
    num_checkpointed,
    recompute_of,
)

CHUNKS = (1, 2, 4, 8, 16, 32)
_SEARCHED: frozenset[Body] = frozenset({"plain", "mixed", "later-mixed", "checkpointed"})
"""Bodies that are tried where nobody asks for one: others tell one number of blocks each."""


def possible(job: Job, choices: Sequence[Pins], num_devices: int) -> list[Pins]:
    """Leave out what cannot run the job where something else can.

    Raises InputError: nothing can; says why the first cannot. Raises UnsupportedError: the same, in
    this version.
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


def grids(job: Job, pins: Pins, *, attention: Attention, cluster: Cluster) -> Iterator[Grid]:
    """Yield every strategy that can run the job, those that run the same events together.

    Micro-batches divide what a device sees of the global batch; chunks of the loss divide a
    micro-batch's tokens, so that every chunk is of one size; any number of blocks may be
    checkpointed, in full or selectively where that was traced; states may be sharded over any
    divisor of the devices; every matrix may be cut over neighbours within a node.

    Raises InputError: a pinned value cannot run this job. Raises UnsupportedError: the same, in
    this version.
    """
    degrees = tensor_degrees(job, pins, cluster)
    possible(job, list(_plainest(pins, degrees)), cluster.num_devices)
    kernels = kernels_of(cluster.device, fused_of(pins))
    ways = product(spreads_of(job, pins, attention, cluster, degrees), recomputes_of(pins))
    for spreads, recompute in ways:
        traced = [
            spread for spread in spreads if _is_traced(job, spread, attention, kernels, recompute)
        ]
        one_apart = any(_tells_one(job, s, attention, kernels, recompute) for s in traced)
        for alike in _alike(job, pins, traced, one_apart=one_apart):
            is_one = one_apart and alike[0][1][0][0] * job.rows_per_sample == 1
            told = _variants(job, traced, attention, kernels, recompute, is_one=is_one)
            num_chunks = _real_chunks(job, pins, *alike[0][1][0])
            for body, num_blocks in _bodies(job, pins, recompute):
                key = variant_key(body, num_chunks=num_chunks)
                known = [(spread, batches) for spread, batches in alike if key in told[spread]]
                if known:
                    yield from _members(job, known, body, num_blocks, recompute, pins)


def _members(  # noqa: PLR0913, PLR0917 - as what is yielded
    job: Job,
    alike: list[tuple["Spread", list[tuple[int, int]]]],
    body: Body,
    num_blocks: NDArray[np.int64],
    recompute: Recompute,
    pins: Pins,
) -> Iterator[Grid]:
    """Yield a grid for every degree of those that run the same events."""
    reference, away = pins.reference or "none", _away(job, pins)
    each = [
        tuple(
            Family(micro_batch, chunks, body, num_blocks, recompute, spread.zero,
                   spread.num_groups, accumulate=spread.accumulate, reference=reference,
                   tp=spread.tp, ep=spread.ep, away=away, fused=fused_of(pins),
                   fsdp=fsdp_of(pins))
            for micro_batch, chunks in batches
        )
        for spread, batches in alike
    ]  # fmt: skip
    kin, start = tuple(family for batches in each for family in batches), 0
    for (spread, _), batches in zip(alike, each, strict=True):
        yield Grid(batches, num_blocks, np.array(spread.num_shards), kin, start)
        start += len(batches)


def _away(job: Job, pins: Pins) -> Away:
    """Return what is offloaded."""
    early = bool(pins.optimizer_in_backward)
    return away_in(job, pins.offload or NO_OFFLOAD, updates_early=early)


def _plainest(pins: Pins, degrees: Sequence[int]) -> Iterator[Pins]:
    """Yield what may run the job at all: sharded by default, whole, and each with matrices cut."""
    for tp in dict.fromkeys((pins.tp or 1, *degrees)):
        yield pins._replace(tp=tp)
        if pins.zero is None:
            yield pins._replace(tp=tp, zero=0)


def has_rows_foreseen(job: Job, attention: Attention, device: Device) -> bool:
    """Whether shipped profiles cover stages of a job: others are traced if pipelines are asked for.

    So what is looked at hangs on no cache.
    """
    return is_foreseen(untied_job(job), attention, kernels_of(device))


def needs(job: Job, every: Sequence[Pins], attention: Attention, cluster: Cluster) -> list[Need]:
    """List the variants of a program that a search asks for, whatever of them was traced."""
    found = {
        Need(gathers, "full" if body == "plain" else recompute, body, traced_chunks(chunks), ep=ep)
        for pins in every
        for ep in expert_degrees(job, pins, attention, cluster)
        for gathers in _gatherings(pins, cluster.num_devices)
        if gathers or ep == 1
        for recompute in recomputes_of(pins)
        for body in _bodies_needed(job, pins, recompute)
        for chunks in _chunks_needed(job, pins, cluster.num_devices)
    }
    counted = {need._replace(recompute="full", body="plain") for need in found}
    return sorted(found | counted)


def cuts_loss(job: Job, fused: FusedKernels) -> bool:
    """Whether a loss may be cut into as many chunks as one likes: Liger's chooses by itself."""
    return job.task in OVER_TOKENS and fused != "liger"


def recomputes_of(pins: Pins) -> tuple[Recompute, ...]:
    """List how blocks may be recomputed: what selective checkpoints keep Liger's kernels change."""
    pinned = recompute_of(pinned_strategy(pins, "sdpa"))
    every = tuple(dict.fromkeys((*SHIPPED_AGAIN, pinned)))
    return every if fused_of(pins) != "liger" else every[:1]


def _chunks_needed(job: Job, pins: Pins, num_devices: int) -> Iterator[int]:
    """Yield the numbers of chunks of the loss that a search asks for."""
    if fused_head(job, fused_of(pins)) is None:
        yield from (1,) if chunks_of(job, pins) == (1,) else CHUNKS
        return
    sizes = micro_batches(job, pins) if num_devices == 1 else micro_batches(job, Pins())
    yield from {_real_chunks(job, pins, size, 1) for size in sizes}


def _bodies_needed(job: Job, pins: Pins, recompute: Recompute) -> set[Body]:
    """Return the bodies of what may be asked: all that is checkpointed may be in one stage."""
    found = {body for body, _ in _bodies(job, pins, recompute)}
    return found | {"plain", "checkpointed"} if found and asks_for_row(pins) else found


def _gatherings(pins: Pins, num_devices: int) -> Iterator[bool]:
    """Yield whether parameters may be gathered before they compute."""
    if (pins.zero in {None, 0, 1} and fsdp_of(pins) == DEFAULT_FSDP) or num_devices == 1:
        yield False
    if num_devices > 1 and pins.zero in {None, 2, 3}:
        yield True


def _is_traced(
    job: Job, spread: Spread, attention: Attention, kernels: Kernels, recompute: Recompute
) -> bool:
    gathers, ep = spread.zero in {2, 3}, spread.ep
    traced = traced_program(
        job, attention, kernels, recompute, gathers=gathers, tp=spread.tp, ep=ep
    )
    return traced is not None


def _variants(  # noqa: PLR0913 - what is run
    job: Job,
    spreads: Sequence[Spread],
    attention: Attention,
    kernels: Kernels,
    recompute: Recompute,
    *,
    is_one: bool,
) -> dict[Spread, Container[str]]:
    """Return what was traced of the program that each spread runs: all, where it shipped."""
    found = dict[Spread, Container[str]]()
    for spread in spreads:
        gathers = spread.zero in {2, 3}
        program = chosen_program(
            job, attention, kernels, recompute,
            gathers=gathers, tp=spread.tp, ep=spread.ep, is_one=is_one,
        )  # fmt: skip
        found[spread] = load_profile(program.key).variants
    return found


def _real_chunks(job: Job, pins: Pins, micro_batch: int, chunks: int) -> int:
    """Return in how many chunks a loss really runs: their size is rounded up."""
    tokens = micro_batch * job.rows_per_sample * job.seq_len
    return -(-tokens // chunk_of(job, tokens, loss_chunks=chunks, fused=fused_of(pins)))


def _tells_one(
    job: Job, spread: Spread, attention: Attention, kernels: Kernels, recompute: Recompute
) -> bool:
    """Whether one sequence at a time has events of its own."""
    gathers = spread.zero in {2, 3}
    program = chosen_program(
        job, attention, kernels, recompute,
        gathers=gathers, tp=spread.tp, ep=spread.ep, is_one=True,
    )  # fmt: skip
    return program.is_one and differs_for_one(load_profile(program._replace(is_one=False).key))


def _alike(
    job: Job, pins: Pins, spreads: Sequence[Spread], *, one_apart: bool
) -> Iterator[list[tuple[Spread, list[tuple[int, int]]]]]:
    """Yield micro-batches with chunks of the loss, those whose steps have the same events together.

    The steps differ in whether there is a second micro-batch (and a third, where gradients are
    held), up to five chunks, whether DDP reduces what they hand back, and where attention is
    written out in whether there is one sequence at a time. Of one micro-batch nothing is held.

    ``spreads``: which differ in the degree of tensor parallelism only. ``one_apart``: whether one
    sequence at a time is apart.
    """
    alike: dict[tuple[int, int, bool, bool], dict[Spread, list[tuple[int, int]]]] = {}
    for spread in spreads:
        share = job.global_batch // spread.num_groups
        batches = product(micro_batches(job, pins, spread.num_groups), chunks_of(job, pins))
        for micro_batch, chunks in batches:
            tokens = micro_batch * job.rows_per_sample * job.seq_len
            if tokens % chunks and pins.loss_chunks is None:
                continue
            is_left = pins.accumulate is None and spread.num_groups > 1
            if is_left and spread.accumulate == "hold" and share == micro_batch:
                continue
            real = _real_chunks(job, pins, micro_batch, chunks)
            num_alike = min(share // micro_batch, 3 if spread.accumulate == "hold" else 2)
            is_one = one_apart and micro_batch * job.rows_per_sample == 1
            is_reduced = spread.num_groups > 1 and spread.zero not in {2, 3}  # by DDP
            key = (num_alike, min(real, NUM_CHUNKS), is_one, is_reduced)
            same = alike.setdefault(key, {})
            same.setdefault(spread, []).append((micro_batch, chunks))
    for same in alike.values():
        yield list(same.items())


def plainest_strategy(
    job: Job, pins: Pins, attention: Attention, num_devices: int = 1
) -> tuple[Strategy, list[int]]:
    """Return what a search by simulation starts from, before anything is simulated.

    Returns the plainest strategy that can run, and the micro-batches to look at, smallest first:
    those that change nothing of what is learnt, or all where none is such. Raises InputError:
    nothing with what the user fixed can run the job. Raises UnsupportedError: the same, in this
    version.
    """
    stages: tuple[Zero | None, ...] = (None, 1, 0) if pins.zero is None else (pins.zero,)

    def made(zero: Zero | None) -> tuple[Strategy, list[int]]:
        pinned = pinned_strategy(pins._replace(zero=zero), attention, num_devices)
        check_spread(job, pinned)
        sizes = micro_batches(job, pins, data_parallel(pinned))
        if pins.optimizer_in_backward:  # of all rows of a step at once
            sizes = sizes[-1:]
        exact = [n for n in sizes if exactness(job, "micro_batch", n).how != "changes"]
        sizes = exact or sizes or [pinned.micro_batch]  # which is refused
        plainest = msgspec.structs.replace(pinned, micro_batch=sizes[0])
        return check_strategy(job, placed(plainest, num_devices)), sizes

    def refusal(zero: Zero | None) -> str | None:
        try:
            made(zero)
        except (InputError, UnsupportedError) as error:
            return str(error)
        return None

    return made(first_that_runs(stages, refusal)[0])


def chunks_of(job: Job, pins: Pins, every: tuple[int, ...] = CHUNKS) -> tuple[int, ...]:
    """List in how many chunks the loss may be cut; the pinned number alone.

    ``every``: those that are tried, 1 first.
    """
    if pins.loss_chunks is not None:
        return (pins.loss_chunks,)
    return every if cuts_loss(job, fused_of(pins)) else every[:1]


def _bodies(job: Job, pins: Pins, recompute: Recompute) -> list[tuple[Body, NDArray[np.int64]]]:
    """List bodies with their counts of checkpointed blocks; none is ``full`` by convention."""
    num_layers = job.model.num_layers
    if recompute != "full" and is_one_unit(job.model):
        return []
    if pins.activation_checkpointing is not None:
        asked = _pinned_blocks(pins.activation_checkpointing, num_layers, recompute)
    else:
        asked = range(int(recompute != "full"), num_layers + 1)
    is_pinned = pins.activation_checkpointing is not None
    every = {
        body: [num for num in counts if num in asked]
        for body, counts in bodies_of(job).items()
        if is_pinned or body in _SEARCHED
    }
    return [(body, np.array(counts)) for body, counts in every.items() if counts]


def _pinned_blocks(text: str, num_layers: int, recompute: Recompute) -> range:
    """Return how many blocks are checkpointed where the user says so; none in another way."""
    pinned = Strategy(micro_batch=1, activation_checkpointing=text, loss_chunks=1, attention="sdpa")
    blocks = num_checkpointed(pinned, num_layers=num_layers)
    is_so = recompute == (recompute_of(pinned) if blocks else "full")
    return range(blocks, blocks + is_so)
