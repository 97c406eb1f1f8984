"""How a Job is run: switches that change memory and speed and leave the mathematics alone."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal, get_args

import msgspec

from brimful.errors import InputError
from brimful.techniques.fused_kernels import FusedKernels
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.techniques.offload import Away, away_in, away_of
from brimful.techniques.parallel.stages import Schedule, Split
from brimful.text.escaping import Line
from brimful.values.flag import Flag
from brimful.values.job import PREFERENCE, Job

Attention = Literal["eager", "sdpa", "flash", "efficient", "cudnn", "flex", "varlen"]
Zero = Literal[0, 1, 2, 3]
"""What is sharded over ``dp_shard`` devices: nothing; the optimizer's state; gradients too, with
parameters gathered once a step; parameters too, gathered block by block, twice."""
Engine = Literal["torch", "deepspeed"]
"""Who shards and reduces: PyTorch's own FSDP2 and DDP, or DeepSpeed."""
Fsdp = Literal[1, 2]
"""Whose parameters are sharded where they are gathered: FSDP1's, flat ones of whole units, or
FSDP2's, each by itself."""
FLAT_FSDP: Fsdp = 1
DEFAULT_FSDP: Fsdp = 2
Accumulate = Literal["reduce-each", "hold"]
"""Over several micro-batches: reduce the gradients of each, or hold whole ones until the last."""
Recompute = Literal["full", "selective", "alternate"]
"""What a checkpointed block computes again in backward: all of it, all but its matrix products and
its attention, or every second of these products too."""
Compile = Literal["none", "blocks", "loss", "blocks+loss", "model"]
"""What ``torch.compile`` compiles: nothing; each block by itself; the loss behind the logits; both,
as torchtitan and torchtune do; or all blocks as one and the head with the loss as another."""
COMPILED: Mapping[Compile, frozenset[str]] = {
    "none": frozenset(),
    "blocks": frozenset({"blocks"}),
    "loss": frozenset({"loss"}),
    "blocks+loss": frozenset({"blocks", "loss"}),
    "model": frozenset({"body", "head"}),
}
"""Parts of a program that are compiled, each by itself."""
Reference = Literal["none", "resident", "offloaded", "adapters-off", "precomputed"]
"""Where the model is that ``dpo`` compares with: a second one on the device; a second one in host
memory, a block of which is on the device at a time; the trained one with its adapters switched off;
nowhere, as what it says was written down before training. Other tasks have ``none``."""
RECOMPUTES: tuple[Recompute, ...] = get_args(Recompute)
_SPELLED = re.compile(rf"({'|'.join(RECOMPUTES)})(?::(\d{{1,9}}))?")
DEGREES = ("dp_replicate", "dp_shard", "tp", "pp")


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
            attention and recompute the rest of the block; ``alternate`` and ``alternate:K`` keep
            those of every second product, as torchtitan does.
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
        engine_settings: Of DeepSpeed's JSON, what is not as this version writes it
            (``techniques.deepspeed_settings``).
        fsdp: Which FSDP of PyTorch gathers parameters (``Fsdp``).
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
        Line, _searched("blocks recomputed", "none|full|full:K|selective|alternate", also="--ac")
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
    engine_settings: Annotated[
        Line,
        Flag(
            "of --engine deepspeed, e.g. overlap_comm:false,reduce_bucket_size:5e8; {default}",
            metavar="SETTINGS",
        ),
    ] = ""
    fsdp: Annotated[
        Fsdp, Flag("PyTorch's FSDP of --zero 2 and 3: {either}; {default}; 1 is not searched")
    ] = DEFAULT_FSDP
    offload: Annotated[
        Line,
        Flag(
            "kept on the host: optimizer, parameters:K (which takes the optimizer along; of "
            "adapters their frozen base alone), "
            "activations:K, of the first K blocks, or several with commas; {default}",
            metavar="WHAT",
        ),
    ] = NO_OFFLOAD
    optimizer_in_backward: Annotated[
        bool, Flag("update each parameter as soon as its gradient is whole; needs --clip 0")
    ] = False
    compile: Annotated[
        Compile,
        Flag(
            "{either}; {default}; blocks: torch.compile of each block; loss: of the loss; "
            "model: of all blocks, and of head and loss; not searched"
        ),
    ] = "none"
    fused_kernels: Annotated[
        FusedKernels,
        Flag(
            "{either}; {default}; liger: norms, activations, rotary positions and loss by Liger; "
            "torch: not the packages either that layers of linear attention ask for",
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


def is_flat(strategy: Strategy) -> bool:
    """Whether FSDP1 gathers parameters: flat ones, each of a whole unit."""
    return strategy.fsdp == FLAT_FSDP and gathers(strategy)


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
    """Count the blocks whose activations are recomputed, from the first block on."""
    text = strategy.activation_checkpointing
    if text == "none":
        return 0
    match = _SPELLED.fullmatch(text)
    if match is None:
        raise InputError(
            f"activation_checkpointing={text!r} is not known; use none, full, full:K, selective, "
            f"selective:K, alternate or alternate:K with K from 0 to {num_layers}"
        )
    if match[2] is None:
        return num_layers
    if int(match[2]) > num_layers:
        raise InputError(
            f"activation_checkpointing={text} asks for {match[2]} blocks and the model has "
            f"{num_layers}; use {match[1]}:{num_layers} or less"
        )
    return int(match[2])


def compiles(strategy: Strategy) -> bool:
    """Whether ``torch.compile`` makes kernels of anything: FlexAttention is one by itself."""
    return strategy.compile != "none" or strategy.attention == "flex"


def is_selective(strategy: Strategy) -> bool:
    """Whether checkpointed blocks keep results of matrix products and attention."""
    return recompute_of(strategy) != "full"


def recompute_of(strategy: Strategy) -> Recompute:
    """Return what checkpointed blocks compute again; ``full`` where there are none."""
    how = strategy.activation_checkpointing.partition(":")[0]
    return next((each for each in RECOMPUTES if each == how), "full")


def spell_checkpointing(num_blocks: int, *, num_layers: int, recompute: Recompute = "full") -> str:
    """Write a count of checkpointed blocks the way people type it."""
    if num_blocks == 0:
        return "none"
    return recompute if num_blocks == num_layers else f"{recompute}:{num_blocks}"


def num_micro_batches(job: Job, strategy: Strategy) -> int:
    """Count the micro-batches that one device accumulates over one optimizer step."""
    return job.global_batch // (strategy.micro_batch * data_parallel(strategy))


def default_reference(job: Job) -> Reference:
    """Return where the reference is where nobody says: in the frozen base, or beside the model."""
    if job.task != PREFERENCE:
        return "none"
    return "resident" if job.adapter is None else "adapters-off"


def default_accumulate(engine: Engine, zero: Zero, pp: int = 1) -> Accumulate:
    """Return what happens to gradients between micro-batches where nobody says."""
    holds = pp > 1 or (engine == "deepspeed" and zero == 1)
    return "hold" if holds else "reduce-each"


def what_is_away(job: Job, strategy: Strategy) -> Away:
    """Return what a strategy keeps on the host; DeepSpeed's own takes a frozen base as all else."""
    text, early = strategy.offload, strategy.optimizer_in_backward
    if strategy.engine == "torch":
        return away_in(job, text, updates_early=early)
    return away_of(text, num_layers=job.model.num_layers, updates_early=early)


def keeps_checkpoints(strategy: Strategy) -> bool:
    """Whether a run can be saved and gone on with: DeepSpeed's own checkpoints are pickled."""
    return strategy.engine == "torch"
