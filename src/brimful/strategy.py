"""How a Job is run: switches that change memory and speed and leave the mathematics alone."""

import re
from typing import Literal

import msgspec

from brimful.errors import InputError
from brimful.exact import Field, exactness
from brimful.job import Job

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
_FIELDS: tuple[Field, ...] = ("micro_batch", "activation_checkpointing", "loss_chunks", "attention")


class Strategy(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The switches of a run.

    What one device has no use for (the fields with defaults) is not written for one device.
    ``world = dp_replicate x dp_shard x tp x pp``.

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
    if strategy.micro_batch < 1 or job.global_batch % strategy.micro_batch:
        raise InputError(
            f"micro_batch={strategy.micro_batch} does not divide global_batch={job.global_batch}; "
            f"use {_divisors(job.global_batch, near=strategy.micro_batch)}"
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


def _divisors(number: int, *, near: int) -> str:
    """List divisors, those nearest to what was asked for where there are many."""
    small = [n for n in range(1, min(number, 4096) + 1) if not number % n]
    chosen = sorted(sorted(small, key=lambda n: abs(n - near))[:_MAX_CHOICES])
    return ", ".join(map(str, chosen))


def _check_exact(job: Job, strategy: Strategy) -> None:
    for field in _FIELDS:
        found = exactness(job, field, getattr(strategy, field))
        if found.how == "changes":
            raise InputError(
                f"{field}={getattr(strategy, field)} would change what this job learns: "
                f"{found.reason}"
            )


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
