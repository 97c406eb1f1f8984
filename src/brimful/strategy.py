"""How a Job is run: switches that change memory and speed and leave the mathematics alone."""

import re
from typing import Literal

import msgspec

from brimful.errors import InputError, UnsupportedError
from brimful.exact import Field, exactness
from brimful.job import QUANTIZED, Job

Attention = Literal["eager", "sdpa", "flash", "efficient", "cudnn", "flex", "varlen"]
Zero = Literal[0, 1, 2, 3]
"""What is sharded over ``dp_shard`` devices: nothing; the optimizer's state; gradients too, with
parameters gathered once a step; parameters too, gathered block by block, twice."""
Accumulate = Literal["reduce-each", "hold"]
"""Over several micro-batches: reduce the gradients of each, or hold whole ones until the last."""
Recompute = Literal["full", "selective"]
"""What a checkpointed block computes again in backward: all of it, or all but its matrix products
and its attention."""
_SPELLED = re.compile(r"(full|selective)(?::(\d{1,9}))?")
_EIB = 2**60
MAX_BYTES = 4 * _EIB
"""Byte counts beyond this overflow; no machine has them."""
_BYTES_PER_VALUE = 64
"""More than any block keeps per value of its input, so that the bound below is one."""
_MAX_CHOICES = 12
_DEGREES = ("dp_replicate", "dp_shard", "tp", "pp")
_FIELDS: tuple[Field, ...] = ("micro_batch", "activation_checkpointing", "loss_chunks", "attention")


class Strategy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The switches of a run: ``world = dp_replicate x dp_shard x tp x pp`` devices.

    Attributes:
        micro_batch: Sequences per forward pass.
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
        pp: Stages of blocks (pipeline parallel).
        accumulate: What happens to gradients between micro-batches (``Accumulate``).
    """

    micro_batch: int
    activation_checkpointing: str
    loss_chunks: int
    attention: Attention
    zero: Zero = 0
    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    pp: int = 1
    accumulate: Accumulate = "reduce-each"


def gathers(strategy: Strategy) -> bool:
    """Whether parameters are sharded and gathered before they compute (ZeRO-2 and ZeRO-3)."""
    return strategy.zero >= 2  # noqa: PLR2004 - DDP and ZeRO-1 hold them whole


def data_parallel(strategy: Strategy) -> int:
    """Count the devices, or groups of them, that see different samples."""
    return strategy.dp_replicate * strategy.dp_shard


def world_size(strategy: Strategy) -> int:
    """Count the devices that a strategy runs on."""
    return data_parallel(strategy) * strategy.tp * strategy.pp


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


def placed(strategy: Strategy, num_devices: int) -> Strategy:
    """Return the strategy as it is, or say that it is for another number of devices.

    Raises:
        InputError: The product of its degrees is not that number.
    """
    if world_size(strategy) != num_devices:
        product = " x ".join(f"{name}={getattr(strategy, name)}" for name in _DEGREES)
        _check_planned(strategy)
        raise InputError(
            f"{product} is {world_size(strategy)} and the cluster has {num_devices} devices; make "
            f"them equal"
        )
    return strategy


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
            would change what is learnt.
    """
    check_spread(job, strategy)
    share = job.global_batch // data_parallel(strategy)
    if strategy.micro_batch < 1 or share % strategy.micro_batch:
        whose = "" if share == job.global_batch else f" / {data_parallel(strategy)} devices"
        raise InputError(
            f"micro_batch={strategy.micro_batch} does not divide global_batch={job.global_batch}"
            f"{whose}; use {_divisors(share, near=strategy.micro_batch)}"
        )
    tokens = strategy.micro_batch * job.seq_len
    if not 1 <= strategy.loss_chunks <= tokens:
        raise InputError(
            f"loss_chunks={strategy.loss_chunks} cannot cut the {tokens} tokens of a micro-batch; "
            f"use 1 to {tokens}"
        )
    num_checkpointed(strategy, num_layers=job.model.num_layers)
    _check_exact(job, strategy)
    _check_size(job, strategy)
    return strategy


def check_spread(job: Job, strategy: Strategy) -> None:
    """Refuse degrees that do not go together, or with the job.

    Raises:
        InputError: A degree is below 1, does not divide the batch, or shards nothing.
        UnsupportedError: This version does not run it.
    """
    degrees = {name: getattr(strategy, name) for name in _DEGREES}
    for name, degree in degrees.items():
        if degree < 1:
            raise InputError(f"{name}={degree} is too few devices; give 1 or more")
    _check_planned(strategy)
    _check_zero(job, strategy)
    parts = data_parallel(strategy)
    if job.global_batch % parts:
        raise InputError(
            f"global_batch={job.global_batch} cannot be split over {parts} data-parallel devices; "
            f"use a multiple of {parts}"
        )


def _check_planned(strategy: Strategy) -> None:
    for name in ("tp", "pp"):
        degree = getattr(strategy, name)
        if degree > 1:
            raise UnsupportedError(
                f"{name}={degree} is not planned by this version, which knows data parallelism and "
                f"ZeRO; use {name}=1"
            )


def _check_zero(job: Job, strategy: Strategy) -> None:
    zero, shards = strategy.zero, strategy.dp_shard
    if zero == 0 and shards > 1:
        raise InputError(
            f"zero=0 shards nothing and dp_shard={shards} asks for shards; use "
            f"dp_replicate={shards}, or zero 1 to 3"
        )
    if zero and shards == 1:
        raise InputError(f"zero={zero} shards over dp_shard=1; give 2 devices or more, or zero=0")
    if zero == 1 and strategy.dp_replicate > 1:
        raise InputError(
            f"zero=1 shards over all devices and dp_replicate={strategy.dp_replicate} asks for "
            f"groups of them; use dp_replicate=1, or zero 2 or 3"
        )
    if zero == 1 and job.precision.endswith("-master"):
        raise UnsupportedError(
            f"zero=1 with precision={job.precision} is not run by this version; use zero 2 or 3, "
            f"which shard the masters too"
        )
    if zero and job.adapter is not None and job.adapter.base in QUANTIZED:
        raise UnsupportedError(
            f"zero={zero} with base={job.adapter.base} is not run by this version; use zero=0, or "
            f"a base that is not quantised"
        )
    if gathers(strategy) and job.task == "module":
        raise UnsupportedError(
            f"zero={zero} of a module of your own is not run by this version; use zero 0 or 1"
        )
    if gathers(strategy) and not _updates_shards(job):
        raise UnsupportedError(
            f"zero={zero} with optimizer={job.optimizer} and precision={job.precision} is not run "
            f"by this version, whose kernels for it take no shards; use optimizer=adamw, or zero 0 "
            f"or 1"
        )


def _updates_shards(job: Job) -> bool:
    """Whether an optimizer's kernels take DTensors; SGD's are fused where it updates fp32."""
    if job.optimizer == "sgd":
        is_wide = job.adapter is not None and job.adapter.dtype == "fp32"
        return job.precision in {"bf16", "fp16"} and not is_wide
    return job.optimizer not in {"adamw-8bit", "adafactor"}


def _divisors(number: int, *, near: int) -> str:
    """List divisors, those nearest to what was asked for where there are many."""
    small = [n for n in range(1, min(number, 4096) + 1) if not number % n]
    chosen = sorted(sorted(small, key=lambda n: abs(n - near))[:_MAX_CHOICES])
    return ", ".join(map(str, chosen))


def _check_exact(job: Job, strategy: Strategy) -> None:
    values: dict[Field, object] = {field: getattr(strategy, field) for field in _FIELDS}
    for field, value in {**values, "data_parallel": data_parallel(strategy)}.items():
        found = exactness(job, field, value)
        if found.how == "changes":
            raise InputError(f"{field}={value} would change what this job learns: {found.reason}")


def _check_size(job: Job, strategy: Strategy) -> None:
    model, tokens = job.model, strategy.micro_batch * job.seq_len
    width = model.hidden_size + model.intermediate_size + model.num_heads * model.head_dim
    per_block = tokens * width + strategy.micro_batch * model.num_heads * job.seq_len**2
    parameters = width * model.hidden_size
    values = model.num_layers * (per_block + 4 * parameters) + tokens * model.vocab_size
    if values * _BYTES_PER_VALUE > MAX_BYTES:
        raise InputError(
            f"micro_batch={strategy.micro_batch} x seq_len={job.seq_len} of {model.name} could "
            f"take {values * _BYTES_PER_VALUE / _EIB:.3g} EiB and no more than "
            f"{MAX_BYTES / _EIB:.3g} EiB can be counted; lower one of them"
        )
