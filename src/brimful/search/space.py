"""The space of strategies for a job on a number of devices."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple, TypedDict, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from brimful.cost.family import Family, body_of, chunk_of
from brimful.cost.formula import missing_parted
from brimful.cost.own_programs import (
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
from brimful.search.grid import Grid
from brimful.techniques.exact import exactness
from brimful.techniques.fused_kernels import FusedKernels, fused_head
from brimful.techniques.kernel_support import first_that_runs
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.techniques.offload import Away, Devices, away_of, check_offload
from brimful.techniques.parallel.stages import ONE_STAGE, Schedule
from brimful.techniques.parallel.tensor import check_tensor
from brimful.techniques.runnable import check_spread, check_strategy, placed
from brimful.values.job import Job, Task
from brimful.values.strategy import (
    Accumulate,
    Attention,
    Compile,
    Recompute,
    Reference,
    Strategy,
    Zero,
    data_parallel,
    default_accumulate,
    num_checkpointed,
    recompute_of,
)

MAX_MICRO_BATCH = 1024
CHUNKS = (1, 2, 4, 8, 16, 32)
CHUNKED: frozenset[Task] = frozenset({"causal-lm", "chat", "dpo"})
"""Tasks whose loss can be cut; the others have one row of logits per sample."""
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
        ep: Devices that part the experts of a block.
        pp: Stages of a pipeline.
        pp_schedule: The order of work in a pipeline.
        stages_per_device: Stages on each device of one.
        reference: Where a preference task's reference model is; not searched, None is ``none``.
        offload: What is kept on the host; searched by ``offloading`` only, else None is ``none``.
        optimizer_in_backward: Whether parameters are updated early; not searched.
        compile: What ``torch.compile`` compiles; not searched, None is ``none``.
        fused_kernels: Whose kernels run beside products and attention; None: searched where they
            are installed.
        allocator: Settings of the caching allocator; None: those that hold (``simulate.proof``).
    """

    micro_batch: int | None = None
    activation_checkpointing: str | None = None
    loss_chunks: int | None = None
    zero: Zero | None = None
    dp_replicate: int | None = None
    dp_shard: int | None = None
    accumulate: Accumulate | None = None
    tp: int | None = None
    ep: int | None = None
    pp: int | None = None
    pp_schedule: Schedule | None = None
    stages_per_device: int | None = None
    reference: Reference | None = None
    offload: str | None = None
    optimizer_in_backward: bool | None = None
    compile: Compile | None = None
    fused_kernels: FusedKernels | None = None
    allocator: str | None = None


def asks_for_row(pins: Pins) -> bool:
    """Whether only pipelines have what the user fixed."""
    return (pins.pp or 1) > 1 or bool(pins.pp_schedule or pins.stages_per_device)


def may_be_row(pins: Pins) -> bool:
    """Whether pipelines have what the user fixed, and a formula."""
    beside = (pins.offload or "none", pins.reference or "none", bool(pins.optimizer_in_backward))
    is_eager = (pins.compile or "none", fused_of(pins)) == ("none", "none")
    is_alone = pins.pp is None and (pins.ep or 1) == 1 and is_eager
    return asks_for_row(pins) or (is_alone and beside == ("none", "none", False))


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


def tensor_degrees(job: Job, pins: Pins, cluster: Cluster) -> tuple[int, ...]:
    """List over how many devices every matrix may be cut: neighbours within a node.

    Args:
        job: What is trained.
        pins: What the user fixed; a fixed degree is the only one, whether it can run or not.
        cluster: On what.
    """
    if pins.tp is not None:
        return (pins.tp,)
    least = 1 + (pins.pp is not None and pins.pp > 1)
    within = range(least, min(cluster.num_devices, cluster.devices_per_node) + 1)
    degrees = (n for n in within if cluster.devices_per_node % n == cluster.num_devices % n == 0)
    return tuple(n for n in degrees if _is_cut(job, n))


def expert_degrees(job: Job, pins: Pins, attention: Attention, cluster: Cluster) -> tuple[int, ...]:
    """List among how many devices experts may be parted: neighbours within a node.

    Where that is another trace with each number, of several the largest: it leaves least on a
    device, and its collectives are the smallest.

    Args:
        job: What is trained.
        pins: What the user fixed; a fixed degree is the only one, whether it can run or not.
        attention: How the model attends.
        cluster: On what.
    """
    if pins.ep is not None:
        return (pins.ep,)
    num = cluster.num_devices
    within = min(num, cluster.devices_per_node)
    if missing_parted(pinned_strategy(pins._replace(ep=within), attention)):
        return (1,)
    parted = [
        n
        for n in range(2, within + 1)
        if within % n == 0 and _is_possible(job, pins, 3, 1, num, 1, n)
    ]
    kernels = kernels_of(cluster.device, fused_of(pins))
    if parted and not is_foreseen(job, attention, kernels, ep=parted[-1]):
        parted = parted[-1:]
    return (1, *parted)


def _is_cut(job: Job, tp: int) -> bool:
    try:
        check_tensor(job, tp)
    except (InputError, UnsupportedError):
        return False
    return True


class Spread(NamedTuple):
    """A way of spreading a model over devices, but for the number of shards.

    Attributes:
        tp: Devices that share every matrix.
        num_groups: Groups of such devices, which see different samples.
        zero: Which states are sharded.
        accumulate: What happens to gradients between micro-batches.
        num_shards: Numbers of devices that may share one copy.
        ep: Devices that part the experts of a block.
    """

    tp: int
    num_groups: int
    zero: Zero
    accumulate: Accumulate
    num_shards: tuple[int, ...]
    ep: int = 1


def grids(job: Job, pins: Pins, *, attention: Attention, cluster: Cluster) -> Iterator[Grid]:
    """Yield every strategy that can run the job, those that run the same events together.

    Micro-batches divide what a device sees of the global batch; chunks of the loss divide a
    micro-batch's tokens, so that every chunk is of one size; any number of blocks may be
    checkpointed, in full or selectively where that was traced; states may be sharded over any
    divisor of the devices; every matrix may be cut over neighbours within a node.

    Args:
        job: What is trained.
        pins: What the user fixed.
        attention: How the model attends.
        cluster: On what.

    Raises:
        InputError: A pinned value cannot run this job.
        UnsupportedError: The same, in this version.
    """
    degrees = tensor_degrees(job, pins, cluster)
    possible(job, list(_plainest(pins, degrees)), cluster.num_devices)
    kernels = kernels_of(cluster.device, fused_of(pins))
    ways = product(_spreads(job, pins, attention, cluster, degrees), recomputes_of(pins))
    for spreads, recompute in ways:
        traced = [
            spread for spread in spreads if _is_traced(job, spread, attention, kernels, recompute)
        ]
        one_apart = any(_tells_one(job, s, attention, kernels, recompute) for s in traced)
        told = _variants(job, traced, attention, kernels, recompute)
        for alike in _alike(job, pins, traced, one_apart=one_apart):
            num_chunks = _real_chunks(job, pins, *alike[0][1][0])
            for body, num_blocks in _bodies(job, pins, recompute):
                if variant_key(body, num_chunks=num_chunks) not in told:
                    continue
                yield from _members(job, alike, body, num_blocks, recompute, pins)


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
                   spread.num_groups, _told_shards(spread), spread.accumulate, reference,
                   spread.tp, spread.ep, away, fused_of(pins))
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
    text, early = pins.offload or NO_OFFLOAD, bool(pins.optimizer_in_backward)
    return away_of(text, num_layers=job.model.num_layers, updates_early=early)


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
    """List the variants of a program that a search asks for, whatever of them was traced.

    Args:
        job: What is trained.
        every: What the user may have fixed.
        attention: How the model attends.
        cluster: On what.
    """
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


def fused_of(pins: Pins) -> FusedKernels:
    """Return whose kernels run beside products and attention in what is searched."""
    return pins.fused_kernels or "none"


def cuts_loss(job: Job, fused: FusedKernels) -> bool:
    """Whether a loss may be cut into as many chunks as one likes: Liger's chooses by itself."""
    return job.task in CHUNKED and fused == "none"


def recomputes_of(pins: Pins) -> tuple[Recompute, ...]:
    """List how blocks may be recomputed: what selective checkpoints keep Liger's kernels change."""
    return RECOMPUTES if fused_of(pins) == "none" else RECOMPUTES[:1]


def _chunks_needed(job: Job, pins: Pins, num_devices: int) -> Iterator[int]:
    """Yield the numbers of chunks of the loss that a search asks for."""
    if fused_head(job, fused_of(pins)) is None:
        yield from (1,) if _chunks(job, pins) == (1,) else CHUNKS
        return
    sizes = micro_batches(job, pins) if num_devices == 1 else micro_batches(job, Pins())
    yield from {_real_chunks(job, pins, size, 1) for size in sizes}


def _bodies_needed(job: Job, pins: Pins, recompute: Recompute) -> set[Body]:
    """Return the bodies of what may be asked: all that is checkpointed may be in one stage."""
    found = {body for body, _ in _bodies(job, pins, recompute)}
    return found | {"plain", "checkpointed"} if found and asks_for_row(pins) else found


def _gatherings(pins: Pins, num_devices: int) -> Iterator[bool]:
    """Yield whether parameters may be gathered before they compute."""
    if pins.zero in {None, 0, 1} or num_devices == 1:
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


def _variants(
    job: Job,
    spreads: Sequence[Spread],
    attention: Attention,
    kernels: Kernels,
    recompute: Recompute,
) -> frozenset[str]:
    """Return what was traced of the programs that some spreads run: all, where it shipped."""
    found = []
    for spread in spreads:
        gathers = spread.zero in {2, 3}
        program = chosen_program(
            job, attention, kernels, recompute, gathers=gathers, tp=spread.tp, ep=spread.ep
        )
        found.append(frozenset(load_profile(program.key).variants))
    return frozenset.intersection(*found) if found else frozenset()


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
    held), up to five chunks, and where attention is written out in whether there is one sequence at
    a time. Of one micro-batch nothing is held.

    Args:
        job: What is trained.
        pins: What the user fixed.
        spreads: Which differ in the degree of tensor parallelism only.
        one_apart: Whether one sequence at a time is apart.
    """
    alike: dict[tuple[int, int, bool], dict[Spread, list[tuple[int, int]]]] = {}
    for spread in spreads:
        share = job.global_batch // spread.num_groups
        batches = product(micro_batches(job, pins, spread.num_groups), _chunks(job, pins))
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
            same = alike.setdefault((num_alike, min(real, NUM_CHUNKS), is_one), {})
            same.setdefault(spread, []).append((micro_batch, chunks))
    for same in alike.values():
        yield list(same.items())


def _spreads(
    job: Job, pins: Pins, attention: Attention, cluster: Cluster, degrees: Sequence[int]
) -> Iterator[list[Spread]]:
    """Yield the ways of spreading that this version runs for the job.

    Together are those that differ in nothing but how many devices share every matrix; where none
    does, other operations run.
    """
    num = cluster.num_devices
    found = [
        each
        for ep in expert_degrees(job, pins, attention, cluster)
        for tp in (degrees if ep == 1 else [n for n in degrees if n == 1])
        for each in _spread_over(job, pins, num, tp, ep)
    ]
    together: dict[tuple[bool, int, int, Zero, Accumulate], list[Spread]] = {}
    for spread in found:
        shards = _told_shards(spread)
        key = (spread.tp > 1, spread.ep, shards, spread.zero, spread.accumulate)
        together.setdefault(key, []).append(spread)
    yield from together.values()


def _told_shards(spread: Spread) -> int:
    """Return the number of shards where events hang on it, as of parted experts; else 1."""
    return 1 if spread.ep == 1 else spread.num_shards[0]


def _spread_over(job: Job, pins: Pins, num_devices: int, tp: int, ep: int) -> Iterator[Spread]:
    """Yield the ways of spreading over devices: ``tp`` share every matrix, ``ep`` part experts."""
    num_groups = num_devices // tp
    if num_groups == 1 and ep == 1:
        if tp == 1 or (_is_alone(pins) and _is_possible(job, pins, 0, 1, 1, tp, 1)):
            yield Spread(tp, 1, 0, "reduce-each", (1,))
        return
    for zero, accumulate in product(get_args(Zero), get_args(Accumulate)):
        if (pins.zero, pins.accumulate) not in product((None, zero), (None, accumulate)):
            continue
        shards = [
            n for n in range(1, num_groups + 1)
            if num_groups % n == 0
            and _is_wanted(pins, num_groups // n, n)
            and _is_possible(job, pins, zero, num_groups // n, n, tp, ep)
        ]  # fmt: skip
        for together in [shards] if ep == 1 else [[n] for n in shards]:
            if together:
                yield Spread(tp, num_groups, zero, accumulate, tuple(together), ep)


def _is_alone(pins: Pins) -> bool:
    """Whether the user's choices leave all devices to one group, which shards nothing else."""
    degrees = {pins.dp_shard or 1, pins.dp_replicate or 1}
    return degrees == {1} and not pins.zero and pins.accumulate in {None, "reduce-each"}


def _is_wanted(pins: Pins, replicas: int, shards: int) -> bool:
    return pins.dp_shard in {None, shards} and pins.dp_replicate in {None, replicas}


def _is_possible(  # noqa: PLR0913, PLR0917 - the degrees
    job: Job, pins: Pins, zero: Zero, replicas: int, shards: int, tp: int, ep: int
) -> bool:
    """Whether this version runs a job so spread."""
    own = Pins(fused_kernels=pins.fused_kernels)
    plain, offload = pinned_strategy(own, "sdpa"), pins.offload or NO_OFFLOAD
    spread = {"zero": zero, "dp_shard": shards, "dp_replicate": replicas, "tp": tp, "ep": ep}
    try:
        check_spread(job, msgspec.structs.replace(plain, **spread))
        check_offload(job, offload, Devices(replicas * shards * tp, 1, zero))
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
        accumulate=pins.accumulate or default_accumulate("torch", 0, pins.pp or 1),
        tp=pins.tp or 1,
        ep=pins.ep or 1,
        pp=pins.pp or 1,
        pp_schedule=pins.pp_schedule or "1f1b",
        stages_per_device=pins.stages_per_device or _stages_of(pins.pp_schedule),
        reference=pins.reference or "none",
        offload=pins.offload or NO_OFFLOAD,
        optimizer_in_backward=bool(pins.optimizer_in_backward),
        compile=pins.compile or "none",
        fused_kernels=pins.fused_kernels or "none",
        allocator=pins.allocator or "",
        **_pinned_degrees(pins, max(1, num_devices // ((pins.tp or 1) * (pins.pp or 1)))),
    )


def plainest_strategy(
    job: Job, pins: Pins, attention: Attention, num_devices: int = 1
) -> tuple[Strategy, list[int]]:
    """Return what a search by simulation starts from, before anything is simulated.

    Args:
        job: What is trained.
        pins: What the user fixed.
        attention: How the model attends.
        num_devices: Of the cluster.

    Returns:
        The plainest strategy that can run, and the micro-batches to look at, smallest first: those
        that change nothing of what is learnt, or all where none is such.

    Raises:
        InputError: Nothing with what the user fixed can run the job.
        UnsupportedError: The same, in this version.
    """
    stages: tuple[Zero | None, ...] = (None, 1, 0) if pins.zero is None else (pins.zero,)

    def made(zero: Zero | None) -> tuple[Strategy, list[int]]:
        pinned = pinned_strategy(pins._replace(zero=zero), attention, num_devices)
        check_spread(job, pinned)
        sizes = micro_batches(job, pins, data_parallel(pinned))
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


def _stages_of(schedule: Schedule | None) -> int:
    return 1 if schedule is None or schedule in ONE_STAGE else 2


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
    """List the micro-batches that divide a device's share, smallest first; the pinned one alone."""
    share, pinned = job.global_batch // num_devices, pins.micro_batch
    sizes = range(1, min(share, MAX_MICRO_BATCH) + 1) if pinned is None else (pinned,)
    return [n for n in sizes if n <= share and share % n == 0]


def _chunks(job: Job, pins: Pins) -> tuple[int, ...]:
    if pins.loss_chunks is not None:
        return (pins.loss_chunks,)
    return CHUNKS if cuts_loss(job, fused_of(pins)) else CHUNKS[:1]


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
