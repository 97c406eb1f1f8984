"""What the user fixed, and the plainest strategy that has it."""

from typing import NamedTuple, TypedDict

from brimful.techniques.fused_kernels import FusedKernels
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.techniques.parallel.stages import ONE_STAGE, Schedule
from brimful.values.job import Job
from brimful.values.strategy import (
    DEFAULT_FSDP,
    Accumulate,
    Attention,
    Compile,
    Fsdp,
    Reference,
    Strategy,
    Zero,
    default_accumulate,
)

MAX_MICRO_BATCH = 1024


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
        fsdp: Which FSDP gathers parameters; not searched, None is 2.
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
    fsdp: Fsdp | None = None
    fused_kernels: FusedKernels | None = None
    allocator: str | None = None


def asks_for_row(pins: Pins) -> bool:
    """Whether only pipelines have what the user fixed."""
    return (pins.pp or 1) > 1 or bool(pins.pp_schedule or pins.stages_per_device)


def may_be_row(pins: Pins) -> bool:
    """Whether pipelines have what the user fixed, and a formula."""
    beside = (pins.offload or "none", pins.reference or "none", bool(pins.optimizer_in_backward))
    is_eager = (pins.compile or "none") == "none" and fused_of(pins) != "liger"
    is_usual = is_eager and fsdp_of(pins) == DEFAULT_FSDP
    is_alone = pins.pp is None and (pins.ep or 1) == 1 and is_usual
    return asks_for_row(pins) or (is_alone and beside == ("none", "none", False))


def fused_of(pins: Pins) -> FusedKernels:
    """Return whose kernels run beside products and attention in what is searched."""
    return pins.fused_kernels or "none"


def fsdp_of(pins: Pins) -> Fsdp:
    """Return which FSDP gathers parameters in what is searched."""
    return pins.fsdp or DEFAULT_FSDP


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
        stages_per_device=pins.stages_per_device
        or (1 if pins.pp_schedule is None or pins.pp_schedule in ONE_STAGE else 2),
        reference=pins.reference or "none",
        offload=pins.offload or NO_OFFLOAD,
        optimizer_in_backward=bool(pins.optimizer_in_backward),
        compile=pins.compile or "none",
        fsdp=fsdp_of(pins),
        fused_kernels=pins.fused_kernels or "none",
        allocator=pins.allocator or "",
        **_pinned_degrees(pins, max(1, num_devices // ((pins.tp or 1) * (pins.pp or 1)))),
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
    """List the micro-batches that divide a device's share, smallest first; the pinned one alone."""
    share, pinned = job.global_batch // num_devices, pins.micro_batch
    sizes = range(1, min(share, MAX_MICRO_BATCH) + 1) if pinned is None else (pinned,)
    return [n for n in sizes if n <= share and share % n == 0]
