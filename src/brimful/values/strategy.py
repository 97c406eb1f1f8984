"""How a Job is run: switches that change memory and speed and leave the mathematics alone."""

import math
import re
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from brimful.allocator.config import parse_settings
from brimful.errors import InputError, UnknownMemoryError, UnsupportedError
from brimful.techniques.exact import Field, exactness
from brimful.techniques.fused_kernels import FusedKernels, beside
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.techniques.offload import Away, Devices, away_of, check_early, check_offload
from brimful.techniques.optimizers import DEFAULT as DEFAULT_OPTIMIZER
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.techniques.parallel.experts import Spread, check_experts_split
from brimful.techniques.parallel.stages import Schedule, Split, check_pipeline
from brimful.techniques.parallel.tensor import check_tensor
from brimful.text.escaping import Line
from brimful.values.flag import Flag
from brimful.values.job import FP8, NARROW, PREFERENCE, QUANTIZED, Base, Job, Precision, Task

Attention = Literal["eager", "sdpa", "flash", "efficient", "cudnn", "flex", "varlen"]
Zero = Literal[0, 1, 2, 3]
"""What is sharded over ``dp_shard`` devices: nothing; the optimizer's state; gradients too, with
parameters gathered once a step; parameters too, gathered block by block, twice."""
Engine = Literal["torch", "deepspeed"]
"""Who shards and reduces: PyTorch's own FSDP2 and DDP, or DeepSpeed."""
DEEPSPEED_OFFLOADS = ("none", "optimizer", "parameters")
"""What DeepSpeed keeps on the host, of all blocks or of none."""
Accumulate = Literal["reduce-each", "hold"]
"""Over several micro-batches: reduce the gradients of each, or hold whole ones until the last."""
Recompute = Literal["full", "selective"]
"""What a checkpointed block computes again in backward: all of it, or all but its matrix products
and its attention."""
Compile = Literal["none", "blocks"]
"""What ``torch.compile`` compiles: nothing, or each block by itself."""
Reference = Literal["none", "resident", "offloaded", "adapters-off", "precomputed"]
"""Where the model is that ``dpo`` compares with: a second one on the device; a second one in host
memory, a block of which is on the device at a time; the trained one with its adapters switched off;
nowhere, as what it says was written down before training. Other tasks have ``none``."""
_SPELLED = re.compile(r"(full|selective)(?::(\d{1,9}))?")
_EIB = 2**60
MAX_BYTES = 4 * _EIB
"""Byte counts beyond this overflow; no machine has them."""
_BYTES_PER_VALUE = 64
"""More than any block keeps per value of its input, so that the bound below is one."""
_MAX_CHOICES = 12
_DEGREES = ("dp_replicate", "dp_shard", "tp", "pp")
DEEPSPEED_PRECISIONS: tuple[Precision, ...] = (
    "fp32", "tf32", "bf16-mixed", "bf16-master", "fp16-master",
)  # fmt: skip
DEEPSPEED_TASKS: tuple[Task, ...] = ("causal-lm", "chat")
COMPILED_TASKS: tuple[Task, ...] = ("causal-lm", "chat")
COMPILED_METHODS = ("full", "lora")
"""Tasks and methods whose models' blocks may be compiled."""
DEEPSPEED_SCALING = (2.0, 0.5)
"""By what its loss scale grows and shrinks."""
FP8_MULTIPLE = 16
"""Of rows and columns of fp8 products; tested equal to ``build.precision.fp8``."""
_FIELDS: tuple[Field, ...] = (
    "micro_batch", "activation_checkpointing", "loss_chunks", "attention", "reference",
    "fused_kernels",
)  # fmt: skip


SPLIT_BACKWARD: frozenset[Schedule] = frozenset({"zero-bubble", "zbv", "dualpipev"})
"""Schedules that compute the gradients of weights apart from those of inputs."""
UNSHARDED: frozenset[Base] = frozenset({"llm-int8"})
"""Quantised bases whose weights FSDP2 does not see."""


def _searched(words: str, metavar: str = "", also: str = "") -> Flag:
    """Return the flag of what ``plan`` searches for, and of which it takes several."""
    return Flag(
        f"{words}; {{default}}", metavar=metavar, also=also, is_searched=True, is_listed=True
    )


class Strategy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The switches of a run: ``world = dp_replicate x dp_shard x tp x pp`` devices.

    Attributes:
        micro_batch: Sequences per forward pass; of task ``dpo`` pairs of them.
        activation_checkpointing: ``none``, ``full`` or ``full:K`` (the first K blocks), or
            ``selective`` and ``selective:K``, which keep the results of matrix products and of
            attention and recompute the rest of the block.
        loss_chunks: Pieces in which the logits and the loss are computed; 1 keeps them whole.
        attention: ``sdpa`` picks the fused kernel of the device; ``flash``, ``efficient`` and
            ``cudnn`` are one of them; ``flex`` and ``varlen`` keep packed documents apart without
            a mask; ``eager`` writes it out.
        zero: Which states are sharded over ``dp_shard`` devices (``Zero``).
        dp_replicate: Groups of devices that each hold a whole, perhaps sharded, model.
        dp_shard: Devices that share one copy of what ``zero`` shards.
        tp: Devices that share every matrix (tensor parallel, with sequence parallel).
        ep: Devices that part the experts of a block among them (expert parallel): all of ``tp``
            and some of ``dp_shard``.
        pp: Devices in a row, each with some of the blocks (pipeline parallel).
        pp_schedule: The order of work in the row (``parallel.stages.Schedule``).
        stages_per_device: Pieces of the model that each device of the row has.
        stage_blocks: Blocks of each stage, in order; empty: ``parallel.stages.balanced_blocks``.
        accumulate: What happens to gradients between micro-batches (``Accumulate``).
        reference: Where the model is that ``dpo`` compares with (``Reference``).
        engine: Who shards and reduces (``Engine``).
        offload: What is in host memory between its uses, as people type it (``offload``).
        optimizer_in_backward: Whether each parameter is updated as soon as its gradient is whole.
        compile: What ``torch.compile`` compiles (``Compile``).
        fused_kernels: Whose kernels run what is not a matrix product or attention, and the loss
            (``FusedKernels``).
        allocator: Settings of the CUDA caching allocator as ``PYTORCH_CUDA_ALLOC_CONF`` spells
            them; empty: PyTorch's own.
    """

    micro_batch: Annotated[int, _searched("sequences a forward pass")]
    activation_checkpointing: Annotated[
        Line, _searched("blocks recomputed", "none|full|full:K|selective", also="--ac")
    ]
    loss_chunks: Annotated[int, _searched("pieces of logits and loss")]
    attention: Annotated[Attention, Flag("{either}; {default}")]
    zero: Annotated[
        Zero,
        _searched("what is sharded: nothing, optimizer, gradients too, parameters too", "0..3"),
    ] = 0
    dp_replicate: Annotated[int, _searched("groups that each hold a whole model")] = 1
    dp_shard: Annotated[int, _searched("devices that share one copy")] = 1
    tp: Annotated[int, _searched("devices that share every matrix (tensor parallel)")] = 1
    ep: Annotated[int, _searched("devices that part the experts of each block")] = 1
    pp: Annotated[
        int,
        Flag(
            "devices in a row, each with some of the blocks (pipeline); {default}", is_listed=True
        ),
    ] = 1
    pp_schedule: Annotated[Schedule, Flag("order of work: {each}; {default}", is_searched=True)] = (
        "1f1b"
    )
    stages_per_device: Annotated[
        int, Flag("pieces of the model on each; {default}", is_searched=True)
    ] = 1
    stage_blocks: Annotated[
        tuple[int, ...], Flag("blocks of each stage; {default}", metavar="N,N,...")
    ] = ()
    accumulate: Annotated[
        Accumulate, Flag("gradients between micro-batches: {either}; {default}")
    ] = "reduce-each"
    reference: Annotated[
        Reference,
        Flag("what --task dpo compares with: {each}; {default}", left_out=("none",)),
    ] = "none"
    engine: Annotated[Engine, Flag("{either}; {default}; deepspeed is not searched")] = "torch"
    offload: Annotated[
        Line,
        Flag(
            "kept on the host: optimizer, parameters:K (which takes the optimizer along), "
            "activations:K, of the first K blocks, or several with commas; {default}",
            metavar="WHAT",
        ),
    ] = NO_OFFLOAD
    optimizer_in_backward: Annotated[
        bool, Flag("update each parameter as soon as its gradient is whole; needs --clip 0")
    ] = False
    compile: Annotated[
        Compile, Flag("{either}; {default}; blocks: torch.compile of each block; not searched")
    ] = "none"
    fused_kernels: Annotated[
        FusedKernels,
        Flag(
            "{either}; {default}; liger: norms, activations, rotary positions and loss by Liger",
            is_searched=True,
        ),
    ] = "none"
    allocator: Annotated[
        Line,
        Flag(
            "of PYTORCH_CUDA_ALLOC_CONF, e.g. expandable_segments:True; {default}",
            metavar="SETTINGS",
            is_searched=True,
        ),
    ] = ""


def gathers(strategy: Strategy) -> bool:
    """Whether parameters are sharded and gathered before they compute (ZeRO-2 and ZeRO-3)."""
    return strategy.zero >= 2  # noqa: PLR2004 - DDP and ZeRO-1 hold them whole


def gathers_alone(strategy: Strategy) -> bool:
    """Whether FSDP2 runs on one device: nothing is sharded, but units are gathered and freed."""
    return gathers(strategy) and world_size(strategy) == 1 and strategy.engine == "torch"


def data_parallel(strategy: Strategy) -> int:
    """Count the devices, or groups of them, that see different samples."""
    return strategy.dp_replicate * strategy.dp_shard


def world_size(strategy: Strategy) -> int:
    """Count the devices that a strategy runs on."""
    return data_parallel(strategy) * strategy.tp * strategy.pp


def split_of(strategy: Strategy) -> Split:
    """Return how the pipeline of a strategy is laid out."""
    return Split(
        strategy.pp, strategy.pp_schedule, strategy.stages_per_device, strategy.stage_blocks
    )


def stage_rank(strategy: Strategy, place: int) -> int:
    """Return the first process that has a place in a row of a pipeline, counted from 0."""
    return place * data_parallel(strategy) * strategy.tp


def num_checkpointed(strategy: Strategy, *, num_layers: int) -> int:
    """Count the blocks whose activations are recomputed, from the first block on.

    Raises:
        InputError: The value is not ``none``, ``full``, ``full:K``, ``selective`` or
            ``selective:K`` with K at most ``num_layers``.
    """
    text = strategy.activation_checkpointing
    if text == "none":
        return 0
    match = _SPELLED.fullmatch(text)
    if match is None:
        raise InputError(
            f"activation_checkpointing={text!r} is not known; use none, full, full:K, selective or "
            f"selective:K with K from 0 to {num_layers}"
        )
    if match[2] is None:
        return num_layers
    if int(match[2]) > num_layers:
        raise InputError(
            f"activation_checkpointing={text} asks for {match[2]} blocks and the model has "
            f"{num_layers}; use {match[1]}:{num_layers} or less"
        )
    return int(match[2])


def is_selective(strategy: Strategy) -> bool:
    """Whether checkpointed blocks keep the results of matrix products and attention."""
    return strategy.activation_checkpointing.startswith("selective")


NUM_DEVICES = "num_devices"
"""What of a cluster a refusal may name: as many devices as a strategy is for."""


def placed(strategy: Strategy, num_devices: int) -> Strategy:
    """Return the strategy as it is, or say that it is for another number of devices.

    Raises:
        InputError: The product of its degrees is not that number.
    """
    if world_size(strategy) != num_devices:
        if num_devices % (strategy.tp * strategy.pp):
            each, most = strategy.tp * strategy.pp, min(num_devices, strategy.tp)
            is_run = strategy.pp == 1 and gathers(strategy)  # DDP cuts no matrices
            fewer = {"tp": _largest_divisor(num_devices, most=most)} if is_run else {}
            raise InputError(
                f"tp={strategy.tp} x pp={strategy.pp} does not divide {num_devices} devices; use "
                f"degrees whose product is one of {_divisors(num_devices, near=each)}",
                nearest=_as_many(strategy, num_devices) or fewer,
            )
        product = " x ".join(f"{name}={getattr(strategy, name)}" for name in _DEGREES)
        raise InputError(
            f"{product} is {world_size(strategy)} and the cluster has {num_devices} devices; make "
            f"them equal",
            nearest=_as_many(strategy, num_devices),
        )
    return strategy


def _as_many(strategy: Strategy, num_devices: int) -> dict[str, int]:
    """Name the devices of one model, where there are not even so many; replicas follow these."""
    each = strategy.tp * strategy.pp
    return {NUM_DEVICES: each} if each > num_devices else {}


def recompute_of(strategy: Strategy) -> Recompute:
    """Return what checkpointed blocks compute again; ``full`` where there are none."""
    return "selective" if is_selective(strategy) else "full"


def spell_checkpointing(num_blocks: int, *, num_layers: int, recompute: Recompute = "full") -> str:
    """Write a count of checkpointed blocks the way people type it."""
    if num_blocks == 0:
        return "none"
    return recompute if num_blocks == num_layers else f"{recompute}:{num_blocks}"


def num_micro_batches(job: Job, strategy: Strategy) -> int:
    """Count the micro-batches that one device accumulates over one optimizer step."""
    return job.global_batch // (strategy.micro_batch * data_parallel(strategy))


def check_strategy(job: Job, strategy: Strategy) -> Strategy:
    """Return the strategy as it is, or say why it cannot run this job.

    Raises:
        InputError: A count is out of range or does not divide what it must divide, or a switch
            would change what is learnt; an allocator setting is unknown.
    """
    check_spread(job, strategy)
    _check_reference(job, strategy)
    _check_engine(job, strategy)
    share = job.global_batch // data_parallel(strategy)
    if strategy.micro_batch < 1 or share % strategy.micro_batch:
        whose = "" if share == job.global_batch else f" / {data_parallel(strategy)} devices"
        raise InputError(
            f"micro_batch={strategy.micro_batch} does not divide global_batch={job.global_batch}"
            f"{whose}; use {_divisors(share, near=strategy.micro_batch)}",
            nearest={"micro_batch": _largest_divisor(share, most=strategy.micro_batch)},
        )
    tokens = strategy.micro_batch * job.rows_per_sample * job.seq_len
    if not 1 <= strategy.loss_chunks <= tokens:
        raise InputError(
            f"loss_chunks={strategy.loss_chunks} cannot cut the {tokens} tokens of a micro-batch; "
            f"use 1 to {tokens}"
        )
    _check_rows(job, tokens)
    _check_pipeline(job, strategy)
    num_checkpointed(strategy, num_layers=job.model.num_layers)
    parse_settings(strategy.allocator)
    _check_exact(job, strategy)
    _check_size(job, strategy)
    return strategy


def check_spread(job: Job, strategy: Strategy) -> None:
    """Refuse degrees that do not go together, or with the job.

    Raises:
        InputError: A degree is below 1, does not divide the batch, or shards nothing.
        UnsupportedError: This version does not run it.
    """
    degrees = {name: getattr(strategy, name) for name in (*_DEGREES, "ep")}
    for name, degree in degrees.items():
        if degree < 1:
            raise InputError(f"{name}={degree} is too few devices; give 1 or more")
    _check_zero(job, strategy)
    _check_alone(strategy)
    _check_compiled(job, strategy)
    _check_fused(job, strategy)
    _check_pairs(job, strategy)
    _check_tensor(job, strategy)
    check_experts_split(job, _expert_spread(strategy))
    _check_router_losses(job, strategy)
    parts = data_parallel(strategy)
    if job.global_batch % parts:
        raise InputError(
            f"global_batch={job.global_batch} cannot be split over {parts} data-parallel devices; "
            f"use a multiple of {parts}",
            nearest={"global_batch": -(-job.global_batch // parts) * parts},
        )


def _check_router_losses(job: Job, strategy: Strategy) -> None:
    """Refuse losses of routers where a device does not see whole micro-batches, or another runs."""
    wanted = [name for name in ("router_aux_loss", "router_z_loss") if getattr(job, name)]
    for field, usual in (("tp", 1), ("pp", 1), ("engine", "torch")):
        value = getattr(strategy, field)
        if wanted and value != usual:
            raise UnsupportedError(
                f"{wanted[0]}={getattr(job, wanted[0])} with {field}={value} is not run by this "
                f"version; use {field}={usual}",
                nearest={field: usual},
            )


def _expert_spread(strategy: Strategy) -> Spread:
    return Spread(
        ep=strategy.ep,
        tp=strategy.tp,
        dp_shard=strategy.dp_shard,
        dp_replicate=strategy.dp_replicate,
        zero=strategy.zero,
    )


def _check_pipeline(job: Job, strategy: Strategy) -> None:
    """Refuse a pipeline that does not run, or not beside what else is asked for."""
    micro_batches = num_micro_batches(job, strategy)
    check_pipeline(job, split_of(strategy), num_micro_batches=micro_batches)
    if strategy.pp == 1:
        return
    if data_parallel(strategy) > 1 and strategy.accumulate != "hold":
        raise UnsupportedError(
            f"pp={strategy.pp} with accumulate={strategy.accumulate} is not run by torch's "
            f"pipelines, which reduce gradients once a step; use accumulate=hold",
            nearest={"accumulate": "hold"},
        )
    if data_parallel(strategy) > 1 and strategy.pp_schedule in SPLIT_BACKWARD:
        raise UnsupportedError(
            f"pp_schedule={strategy.pp_schedule} over {data_parallel(strategy)} data-parallel "
            f"devices is not run: torch computes gradients of weights apart, where neither DDP "
            f"nor FSDP2 sees them; use pp_schedule=1f1b or interleaved, or as many devices as one "
            f"pipeline has",
            nearest={NUM_DEVICES: world_size(strategy) // data_parallel(strategy)},
        )
    if is_selective(strategy) and strategy.pp_schedule in SPLIT_BACKWARD:
        raise UnsupportedError(
            f"pp_schedule={strategy.pp_schedule} with activation_checkpointing="
            f"{strategy.activation_checkpointing} is not run: torch goes backward through a block "
            f"twice, which selective checkpoints forbid; use full, or pp_schedule=1f1b"
        )


def _check_tensor(job: Job, strategy: Strategy) -> None:
    """Refuse tensor parallelism of what cannot be cut, or beside what takes no pieces."""
    check_tensor(job, strategy.tp, ep=strategy.ep)
    beside: dict[str, tuple[bool, dict[str, object]]] = {
        f"zero={strategy.zero} over {data_parallel(strategy)} data-parallel devices": (
            data_parallel(strategy) > 1 and not gathers(strategy), {"zero": 2}
        ),
        f"engine={strategy.engine}": (strategy.engine != "torch", {"engine": "torch"}),
        f"optimizer={job.optimizer}": (
            OPTIMIZERS[job.optimizer].shards not in {"all", "local"},
            {"optimizer": DEFAULT_OPTIMIZER},
        ),
        f"keep_fp32={','.join(job.keep_fp32)}": (bool(job.keep_fp32), {"keep_fp32": None}),
        f"precision={FP8}": (job.precision == FP8, {"precision": "bf16-mixed"}),
    }  # fmt: skip
    for what, (takes_none, nearest) in beside.items():
        if strategy.tp > 1 and takes_none:
            raise UnsupportedError(
                f"tp={strategy.tp} with {what} is not run by this version, which has no pieces of "
                f"matrices there; use zero 2 or 3, engine=torch and optimizer={DEFAULT_OPTIMIZER}, "
                f"another precision than fp8, and no keep_fp32",
                nearest=nearest,
            )


def _check_alone(strategy: Strategy) -> None:
    """Refuse FSDP2 on one device beside what moves parameters or updates them in another way."""
    beside = {
        f"offload={strategy.offload}": strategy.offload != NO_OFFLOAD,
        "optimizer_in_backward": strategy.optimizer_in_backward,
    }
    for what, is_asked in beside.items():
        if is_asked and gathers_alone(strategy):
            raise UnsupportedError(
                f"zero={strategy.zero} on one device with {what} is not run by this version; use "
                f"zero=0",
                nearest={"zero": 0},
            )


def _check_compiled(job: Job, strategy: Strategy) -> None:
    """Refuse compiled blocks beside what was not compared with a run."""
    if strategy.compile == "none":
        return
    base = "same" if job.adapter is None else job.adapter.base
    beside = {
        f"task={job.task}": job.task not in COMPILED_TASKS,
        f"method={job.method}": job.method not in COMPILED_METHODS,
        f"precision={job.precision}": job.precision == FP8,
        f"base={base}": base in QUANTIZED,
        f"attention={strategy.attention}": strategy.attention in {"flex", "varlen"},
        f"packing={job.packing}": job.packing == "documents",
        f"router_aux_loss={job.router_aux_loss}": bool(job.router_aux_loss),
        f"router_z_loss={job.router_z_loss}": bool(job.router_z_loss),
        **_beside_plain(strategy),
    }
    for what, is_asked in beside.items():
        if is_asked:
            raise UnsupportedError(
                f"compile={strategy.compile} with {what} is not run by this version; use "
                f"compile=none",
                nearest={"compile": "none"},
            )


def _check_fused(job: Job, strategy: Strategy) -> None:
    """Refuse Liger's kernels beside what would make them wrong, or was not compared."""
    if strategy.fused_kernels == "none":
        return
    refused = next(iter((*beside(job), *_beside_fused(strategy))), None)
    if refused is not None:
        what, why = refused
        raise UnsupportedError(
            f"fused_kernels={strategy.fused_kernels} with {what} is not run by this version, "
            f"{why}; use fused_kernels=none",
            nearest={"fused_kernels": "none"},
        )


def _beside_fused(strategy: Strategy) -> Iterator[tuple[str, str]]:
    if is_selective(strategy):
        yield (
            f"activation_checkpointing={strategy.activation_checkpointing}",
            "because these checkpoints keep results of products that its rotary kernel writes over",
        )
    if strategy.loss_chunks > 1:
        yield (
            f"loss_chunks={strategy.loss_chunks}",
            "because its fused loss cuts tokens into chunks of its own",
        )
    asked = {
        f"attention={strategy.attention}": strategy.attention == "flex",
        f"compile={strategy.compile}": strategy.compile != "none",
        **_beside_plain(strategy),
    }
    for what, is_asked in asked.items():
        if is_asked:
            yield what, "which was not compared with the plain loop"


def _beside_plain(strategy: Strategy) -> dict[str, bool]:
    """Say which of the switches are on that a plain run of blocks has not."""
    return {
        f"engine={strategy.engine}": strategy.engine != "torch",
        f"zero={strategy.zero} on one device": gathers_alone(strategy),
        f"offload={strategy.offload}": strategy.offload != NO_OFFLOAD,
        "optimizer_in_backward": strategy.optimizer_in_backward,
        **{
            f"{name}={getattr(strategy, name)}": getattr(strategy, name) > 1
            for name in ("tp", "ep", "pp")
        },
    }


def _check_zero(job: Job, strategy: Strategy) -> None:
    zero, shards = strategy.zero, strategy.dp_shard
    if zero == 0 and shards > 1:
        raise InputError(
            f"zero=0 shards nothing and dp_shard={shards} asks for shards; use "
            f"dp_replicate={shards}, or zero 1 to 3"
        )
    is_torch = strategy.engine == "torch"
    if zero and shards == 1 and is_torch and not gathers_alone(strategy):
        raise InputError(f"zero={zero} shards over dp_shard=1; give 2 devices or more, or zero=0")
    if zero == 1 and strategy.dp_replicate > 1:
        raise InputError(
            f"zero=1 shards over all devices and dp_replicate={strategy.dp_replicate} asks for "
            f"groups of them; use dp_replicate=1, or zero 2 or 3"
        )
    if zero == 1 and job.precision.endswith("-master") and is_torch:
        raise UnsupportedError(
            f"zero=1 with precision={job.precision} is not run by this version; use zero 2 or 3, "
            f"which shard the masters too",
            nearest={"zero": 3},
        )
    if zero == 1 and not OPTIMIZERS[job.optimizer].zero1:
        raise UnsupportedError(
            f"zero=1 with optimizer={job.optimizer} is not run by this version, whose state is cut "
            f"by torch's ZeRO-1 in another way; use zero=0, or optimizer={DEFAULT_OPTIMIZER}",
            nearest={"zero": 0},
        )
    if zero == 1 and job.keep_fp32 and job.precision in NARROW:
        raise UnsupportedError(
            f"zero=1 with keep_fp32={','.join(job.keep_fp32)} and precision={job.precision} is not "
            f"run by this version, as torch's ZeRO-1 takes parameters of one type; use zero 0, 2 "
            f"or 3, or {job.precision}-mixed"
        )
    if gathers(strategy) and job.adapter is not None and job.adapter.base in UNSHARDED:
        raise UnsupportedError(
            f"zero={zero} with base={job.adapter.base} is not run by this version, whose weights "
            f"lie where FSDP2 does not see them; use base=int8 or nf4, or zero 0 or 1",
            nearest={"zero": 0, "dp_shard": None},
        )
    if gathers(strategy) and job.task == "module":
        raise UnsupportedError(
            f"zero={zero} of a module of your own is not run by this version; use zero 0 or 1",
            nearest={"zero": 0, "dp_shard": None},
        )
    if gathers(strategy) and OPTIMIZERS[job.optimizer].shards == "none" and is_torch:
        raise UnsupportedError(
            f"zero={zero} with optimizer={job.optimizer} is not run by this version, whose kernels "
            f"for it take no shards; use optimizer={DEFAULT_OPTIMIZER}, or zero 0 or 1",
            nearest={"zero": 0, "dp_shard": None},
        )


def default_reference(job: Job) -> Reference:
    """Return where the reference is where nobody says: in the frozen base, or beside the model."""
    if job.task != PREFERENCE:
        return "none"
    return "resident" if job.adapter is None else "adapters-off"


def default_accumulate(engine: Engine, zero: Zero, pp: int = 1) -> Accumulate:
    """Return what happens to gradients between micro-batches where nobody says."""
    holds = pp > 1 or (engine == "deepspeed" and zero == 1)
    return "hold" if holds else "reduce-each"


def _check_reference(job: Job, strategy: Strategy) -> None:
    reference = strategy.reference
    if (reference != "none") != (job.task == PREFERENCE):
        fix = "leave it out" if reference != "none" else f"use {default_reference(job)}"
        raise InputError(
            f"reference={reference} does not go with task={job.task}: a reference model is what "
            f"task={PREFERENCE} compares with; {fix}"
        )
    if reference == "adapters-off" and job.adapter is None:
        raise InputError(
            f"reference=adapters-off needs adapters to switch off and method={job.method} has "
            f"none; use resident, offloaded or precomputed"
        )
    if reference == "offloaded" and job.adapter is not None and job.adapter.base in QUANTIZED:
        raise UnsupportedError(
            f"reference=offloaded of a base in {job.adapter.base} is not run by this version; use "
            f"adapters-off, which needs no second model",
            nearest={"reference": "adapters-off"},
        )
    if reference == "precomputed" and data_parallel(strategy) > 1:
        raise UnsupportedError(
            f"reference=precomputed on {data_parallel(strategy)} devices is not run by this "
            f"version; use another reference, of which it would save the bytes, or one device",
            nearest={"reference": default_reference(job)},
        )


def _check_pairs(job: Job, strategy: Strategy) -> None:
    """Refuse to cut a model of which there may be a second one, and to gather one from the host."""
    if job.task != PREFERENCE:
        return
    if strategy.tp > 1:
        raise UnsupportedError(
            f"task={PREFERENCE} with tp={strategy.tp} is not run by this version; use tp=1",
            nearest={"tp": 1},
        )
    if strategy.reference == "offloaded" and gathers(strategy):
        raise UnsupportedError(
            f"reference=offloaded with zero={strategy.zero} is not run by this version, which "
            f"shards a second model as it shards the first; use reference=resident, or zero=0",
            nearest={"reference": default_reference(job)},
        )


def _check_engine(job: Job, strategy: Strategy) -> None:
    """Refuse what an engine cannot do.

    Raises:
        UnsupportedError: Says what to change.
    """
    if strategy.engine == "torch":
        early, num_devices = strategy.optimizer_in_backward, world_size(strategy)
        devices = Devices(num_devices, strategy.pp, strategy.zero)
        check_offload(job, strategy.offload, devices, updates_early=early)
        if early:
            check_early(job, what_is_away(job, strategy), strategy.offload, num_devices=num_devices)
        return
    away_of(strategy.offload, num_layers=job.model.num_layers)
    refused = next(_refused_by_deepspeed(job, strategy), None)
    if refused is not None:
        what, fix = refused
        is_run = job.precision in DEEPSPEED_PRECISIONS
        raise UnsupportedError(
            f"{what} is not run by engine=deepspeed; {fix}, or engine=torch",
            nearest={} if is_run else {"precision": _deepspeed_precision(job.precision)},
        )


def _deepspeed_precision(precision: Precision) -> Precision:
    """Return the recipe that DeepSpeed's JSON says of a type: its fp16 has master weights."""
    kind = precision.partition("-")[0]
    return next((each for each in DEEPSPEED_PRECISIONS if each.startswith(kind)), "bf16-mixed")


def what_is_away(job: Job, strategy: Strategy) -> Away:
    """Return what a strategy keeps on the host."""
    early = strategy.optimizer_in_backward
    return away_of(strategy.offload, num_layers=job.model.num_layers, updates_early=early)


def _refused_by_deepspeed(job: Job, strategy: Strategy) -> Iterator[tuple[str, str]]:
    """Yield what of a job DeepSpeed is not given, and what to use instead."""
    zero = strategy.zero
    yield from _refused_types(job)
    if not OPTIMIZERS[job.optimizer].deepspeed_engine:
        flat = [rule.name for rule in OPTIMIZERS.values() if rule.deepspeed_engine]
        why = "whose blocks are not those of flattened parameters"
        yield f"optimizer={job.optimizer}, {why},", f"use {' or '.join(flat)}"
    if job.task not in DEEPSPEED_TASKS:
        yield f"task={job.task}", f"use {' or '.join(DEEPSPEED_TASKS)}"
    if job.method != "full":
        yield f"method={job.method}", "use method=full"
    for name in ("dp_replicate", "tp", "pp", "ep"):
        if getattr(strategy, name) > 1:
            yield f"{name}={getattr(strategy, name)}", f"use {name}=1 and more dp_shard"
    if zero == 0:
        yield "zero=0", "use zero 1 to 3"
    if strategy.offload not in DEEPSPEED_OFFLOADS:
        yield f"offload={strategy.offload}", f"use {' or '.join(DEEPSPEED_OFFLOADS)}"
    if strategy.offload == "parameters" and zero != 3:  # noqa: PLR2004 - ZeRO-3
        yield f"offload=parameters with zero={zero}, which holds them whole,", "use zero=3"
    fits = default_accumulate(strategy.engine, zero)
    if strategy.accumulate != fits and num_micro_batches(job, strategy) > 1:
        yield f"accumulate={strategy.accumulate} with zero={zero}", f"use accumulate={fits}"
    yield from _refused_updates(job, strategy)


def _refused_types(job: Job) -> Iterator[tuple[str, str]]:
    if job.precision not in DEEPSPEED_PRECISIONS:
        yield f"precision={job.precision}", f"use {' or '.join(DEEPSPEED_PRECISIONS)}"
    if job.keep_fp32:
        yield f"keep_fp32={','.join(job.keep_fp32)}", "leave it out"


def _refused_updates(job: Job, strategy: Strategy) -> Iterator[tuple[str, str]]:
    """Yield what its JSON cannot say of an update: its loss scale is of powers of two."""
    if strategy.optimizer_in_backward:
        yield "optimizer_in_backward", "leave it out"
    scale = job.loss_scale
    if scale is None:
        return
    if (scale.growth_factor, scale.backoff_factor) != DEEPSPEED_SCALING:
        both = f"growth_factor={scale.growth_factor} and backoff_factor={scale.backoff_factor}"
        yield both, "use {} and {}".format(*DEEPSPEED_SCALING)
    if scale.initial_scale < 1 or not math.log2(scale.initial_scale).is_integer():
        yield f"initial_scale={scale.initial_scale}", "use a power of two, 1 or more"


def check_simulated(strategy: Strategy) -> None:
    """Refuse an engine that is simulated by its own program and not within ours.

    Raises:
        UnsupportedError: It is DeepSpeed.
    """
    if strategy.engine != "torch":
        raise UnknownMemoryError(
            f"engine={strategy.engine} is not simulated within our own loop; brimful simulate "
            f"--for deepspeed runs DeepSpeed's own code, and engine=torch is simulated",
            nearest={"engine": "torch"},
        )


def check_examined(strategy: Strategy) -> None:
    """Refuse what the precision doctor does not look into.

    Raises:
        UnsupportedError: Blocks or experts are on other devices.
    """
    for field in ("pp", "ep"):
        if getattr(strategy, field) > 1:
            raise UnsupportedError(
                f"{field}={getattr(strategy, field)} is not examined by this version; use "
                f"{field}=1: it learns the same"
            )
    if strategy.compile != "none":
        raise UnsupportedError(
            f"compile={strategy.compile} is not examined by this version, as no module inside a "
            f"compiled block is seen; use compile=none"
        )
    if strategy.fused_kernels != "none":
        raise UnsupportedError(
            f"fused_kernels={strategy.fused_kernels} is not examined by this version, as its loss "
            f"has no logits to look at; use fused_kernels=none: it learns the same"
        )
    if gathers_alone(strategy):
        raise UnsupportedError(
            f"zero={strategy.zero} on one device is not examined by this version; use zero=0: it "
            f"learns the same"
        )


def keeps_checkpoints(strategy: Strategy) -> bool:
    """Whether a run can be saved and gone on with: DeepSpeed's own checkpoints are pickled."""
    return strategy.engine == "torch"


def _largest_divisor(number: int, *, most: int) -> int:
    """Return the largest divisor of a number that is no larger than another; at least 1."""
    return max((n for n in range(1, min(number, most) + 1) if not number % n), default=1)


def _divisors(number: int, *, near: int) -> str:
    """List divisors, those nearest to what was asked for where there are many."""
    small = [n for n in range(1, min(number, 4096) + 1) if not number % n]
    chosen = sorted(sorted(small, key=lambda n: abs(n - near))[:_MAX_CHOICES])
    return ", ".join(map(str, chosen))


def _check_rows(job: Job, tokens: int) -> None:
    """Refuse rows that fp8 products cannot add over; those of samples are filled up."""
    if job.precision == FP8 and job.packing != "none" and tokens % FP8_MULTIPLE:
        raise InputError(
            f"micro_batch x seq_len is {tokens} tokens and precision={FP8} multiplies multiples of "
            f"{FP8_MULTIPLE}; use a seq_len that is one, or packing=none"
        )


def _check_exact(job: Job, strategy: Strategy) -> None:
    values: dict[Field, object] = {field: getattr(strategy, field) for field in _FIELDS}
    values["data_parallel"] = data_parallel(strategy)
    early = strategy.optimizer_in_backward
    values["optimizer_in_backward"] = num_micro_batches(job, strategy) if early else 0
    for field, value in values.items():
        found = exactness(job, field, value)
        if found.how == "changes":
            said = getattr(strategy, field, value)
            raise InputError(
                f"{field}={said} would change what this job learns: {found.reason}",
                nearest={"allow": found.allowed_by} if found.allowed_by else None,
            )


def _check_size(job: Job, strategy: Strategy) -> None:
    model, rows = job.model, strategy.micro_batch * job.rows_per_sample
    tokens = rows * job.seq_len
    width = model.hidden_size + model.intermediate_size + model.num_heads * model.head_dim
    per_block = tokens * width + rows * model.num_heads * job.seq_len**2
    parameters = width * model.hidden_size
    values = model.num_layers * (per_block + 4 * parameters) + tokens * model.vocab_size
    if values * _BYTES_PER_VALUE > MAX_BYTES:
        raise InputError(
            f"micro_batch={strategy.micro_batch} x seq_len={job.seq_len} of {model.name} could "
            f"take {values * _BYTES_PER_VALUE / _EIB:.3g} EiB and no more than "
            f"{MAX_BYTES / _EIB:.3g} EiB can be counted; lower one of them"
        )
