"""A step that came to Inf or NaN: kept in the run's folder, and told in one sentence."""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from safetensors.torch import save_file

from brimful.build.batch import Batch, count_targets
from brimful.build.precision.loss_scaling import MIN_SCALE
from brimful.build.program import Program
from brimful.doctor.program import PlainStep, find_first_bad
from brimful.doctor.records import GRADIENTS, FirstBad, Kind, earliest
from brimful.errors import FileFormatError, RunError
from brimful.files.writing import disk_error, write_text
from brimful.text.escaping import json_text
from brimful.train.checkpoint import newest_checkpoint
from brimful.train.nan import Origin, find_origin
from brimful.train.tally import MAX_SKIPPED_IN_A_ROW
from brimful.train.world import is_spread, of_all, own_rank
from brimful.values.run_files import CHECKPOINTS
from brimful.values.strategy import is_flat

BAD_STEP_SCHEMA = "brimful.bad-step/1"
BATCH_FILE = "batch.safetensors"
STEP_FILE = "step.json"


class BadStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a step that came to Inf or NaN.

    Attributes:
        schema: ``BAD_STEP_SCHEMA``.
        step: From 1.
        micro_batch: Of its micro-batches the one with the first Inf or NaN, from 1; the first one
            where none was found again.
        num_micro_batches: Of the step.
        what: What was not finite: ``loss`` or ``gradient norm``.
        where: ``forward``, ``backward``, or ``not found`` where running the step again came to no
            Inf or NaN.
        name: The first module, in the order of the forward pass, whose output was not finite, or
            the first parameter, in the order of the backward pass, whose gradient was not.
        input_low: Smallest number that the module was given.
        input_high: Largest.
        loss: Of the step, as text: JSON has no word for Inf and NaN.
        grad_norm: Likewise, before clipping.
        loss_scale: What the loss was multiplied by; None where it is not scaled.
        learning_rate: Of the step.
        position: Where the step's data begins, as the checkpoints say it.
        rank: Of the process that had it first; its micro-batches are counted.
        op: torch's name of the operation that made it of finite numbers; None where none did.
    """

    schema: str
    step: int
    micro_batch: int
    num_micro_batches: int
    what: str
    where: str
    name: str
    input_low: str | None
    input_high: str | None
    loss: str
    grad_norm: str
    loss_scale: float | None
    learning_rate: float
    position: Any
    rank: int = 0
    op: str | None = None


NOT_SOUGHT = "where is not looked for"
"""DeepSpeed has taken the gradients away, FSDP1 hands none to a parameter; a stage of a pipeline is
not run by itself; a held-out sample is not run again in one process of several, which would leave
the others waiting."""
_KINDS: dict[Kind, str] = {
    "input": "what the model is given: the",
    "weight": "the weight",
    "activation": "the output of",
    "output-gradient": "the gradient of the output of",
    "gradient": "the gradient of",
}


def describe_origin(origin: Origin | None, num_micro_batches: int) -> str:
    """Say where the first Inf or NaN appeared."""
    if origin is None:
        return "running the step again does not show where"
    kinds = {"forward": "the output of", "backward": "the gradient of"}
    return (
        f"first in {kinds[origin.where]} {origin.name}, micro-batch {origin.micro_batch + 1} of "
        f"{num_micro_batches}"
    )


def describe_first_bad(bad: FirstBad | None, num_micro_batches: int) -> str:
    """Say where the first Inf or NaN of all processes appeared."""
    if bad is None:
        return "running the step again does not show where"
    by = f" by {bad.op}" if bad.op else ""
    return (
        f"first in {_KINDS[bad.kind]} {bad.name}{by}, micro-batch {bad.micro_batch + 1} of "
        f"{num_micro_batches} of process {bad.rank}"
    )


def keep_bad_step(out: Path, bad: BadStep, batch: Batch) -> Path:
    """Write the offending micro-batch and what is known of it, all or nothing.

    Returns the folder, ``bad-step-00000012``; replaced where it is there from an earlier attempt.
    Raises RunError: the disk is full or cannot be written.
    """
    final = out / f"bad-step-{bad.step:08d}"
    temporary = out / f".{final.name}.tmp"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        # Inputs and labels are often one tensor, a token apart, which safetensors refuses.
        kept = {
            name: tensor.cpu().clone(memory_format=torch.contiguous_format)
            for name, tensor in batch._asdict().items()
            if tensor is not None
        }
        save_file(kept, temporary / BATCH_FILE)
        write_text(temporary / STEP_FILE, json_text(bad, indent=2) + "\n")
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
    except OSError as error:
        raise disk_error(final, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def try_to_keep(out: Path, bad: BadStep, batch: Batch) -> str:
    """Keep a bad step and say where; a full disk must not hide what happened."""
    try:
        return f"the batch is kept in {keep_bad_step(out, bad, batch)}"
    except RunError as error:
        return f"the batch could not be kept ({error})"


class StepNumbers(NamedTuple):
    """What a step came to.

    Attributes:
        step: From 1.
        loss: In nats; may be Inf or NaN.
        grad_norm: Before clipping; may be Inf or NaN.
        learning_rate: Of the step.
        loss_scale: What the loss was multiplied by; None where it is not scaled.
        skipped: Whether the scaled gradients overflowed, so that nothing was updated.
    """

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    loss_scale: float | None
    skipped: bool

    def what_is_bad(self) -> str:
        """Name what is not finite; empty where all is."""
        if not math.isfinite(self.loss):
            return "loss"
        return "" if math.isfinite(self.grad_norm) else "gradient norm"


def must_stop(program: Program, numbers: StepNumbers, num_skipped_in_a_row: int) -> bool:
    """Tell whether a run cannot go on after a step.

    A skipped step is no error: the next one's scale is smaller. It is one after
    ``MAX_SKIPPED_IN_A_ROW``, and where the next scale but one would be below ``MIN_SCALE``.

    ``program``: the program; its scaler has taken note of the step. ``num_skipped_in_a_row``: steps
    skipped just before it.
    """
    if not numbers.skipped:
        return bool(numbers.what_is_bad())
    if num_skipped_in_a_row + 1 >= MAX_SKIPPED_IN_A_ROW:
        return True
    settings = program.job.loss_scale
    if program.scaler is None or settings is None:
        return False
    return program.scaler.scale * settings.backoff_factor < MIN_SCALE


def _is_sought(program: Program) -> bool:
    is_ours = program.strategy.engine == "torch" and program.pipeline is None
    return is_ours and not is_flat(program.strategy)  # whose parameters are no leaves


def explain_stop(  # noqa: PLR0913 - a step, and where it is told
    program: Program,
    numbers: StepNumbers,
    micro_batches: Sequence[Batch],
    *,
    position: Any,
    out: Path,
    found: str | None = None,
) -> RunError:
    """Find where a step went wrong, keep its batch, and say it in one sentence.

    ``found``: of ``look_together``, on many devices. Returns the error, to be raised by the caller.
    """
    if not _is_sought(program):
        found = NOT_SOUGHT
    elif found is None:
        found = _look(program, numbers, micro_batches, position, out)
    what = numbers.what_is_bad()
    return RunError(
        f"the {what} became {numbers.loss if what == 'loss' else numbers.grad_norm} in step "
        f"{numbers.step} of {program.job.num_steps} with "
        f"learning_rate={program.job.learning_rate}{_scale_words(numbers)}, "
        f"{found} and {_last_good(out)}; "
        f"lower learning_rate or raise warmup_steps"
    )


def look_together(
    program: Program,
    numbers: StepNumbers,
    step: PlainStep,
    *,
    position: Any,
    out: Path,
) -> str | None:
    """Run a step once more on all processes, and say which of them had the first Inf or NaN.

    Each watches its own numbers before they are sent. That process keeps the batch.

    Returns the same words in all processes; None in one that trains alone.
    """
    if not is_spread() or not _is_sought(program):
        return None
    mine = find_first_bad(
        program, step, loss_scale=numbers.loss_scale, number=numbers.step, rank=own_rank()
    )
    bad = earliest([other for other in of_all(mine) if other is not None])
    num_micro_batches = len(step.micro_batches)
    words = describe_first_bad(bad, num_micro_batches)
    if bad is None:
        return words
    kept = None
    if bad.rank == own_rank():
        told = _bad_step_of(numbers, bad, num_micro_batches, position)
        kept = try_to_keep(out, told, step.micro_batches[bad.micro_batch])
    return f"{words}; {next(said for said in of_all(kept) if said is not None)}"


def _look(
    program: Program,
    numbers: StepNumbers,
    micro_batches: Sequence[Batch],
    position: Any,
    out: Path,
) -> str:
    """Find where the step went wrong and keep its batch; says both."""
    origin = find_origin(program, micro_batches, loss_scale=numbers.loss_scale, step=numbers.step)
    bad = _bad_step(numbers, origin, len(micro_batches), position)
    bad = msgspec.structs.replace(bad, op=_op_behind(program, numbers, micro_batches, bad))
    kept = try_to_keep(out, bad, micro_batches[bad.micro_batch - 1])
    by = f" (by {bad.op})" if bad.op else ""
    return f"{describe_origin(origin, len(micro_batches))}{by}; {kept}"


def _op_behind(
    program: Program, numbers: StepNumbers, micro_batches: Sequence[Batch], bad: BadStep
) -> str | None:
    """Name the operation that made the first Inf or NaN; None where numbers were bad before it."""
    step = PlainStep(micro_batches=micro_batches, num_targets=count_targets(micro_batches))
    found = find_first_bad(program, step, loss_scale=numbers.loss_scale, number=numbers.step)
    if found is None or found.micro_batch + 1 != bad.micro_batch:
        return None
    return found.op


def _last_good(out: Path) -> str:
    try:
        newest = newest_checkpoint(out / CHECKPOINTS)
    except FileFormatError:
        return "no checkpoint is sound"
    return f"the last good checkpoint is {newest}" if newest else "there is no checkpoint yet"


def _scale_words(numbers: StepNumbers) -> str:
    if not numbers.skipped:
        return ""
    return f" and loss_scale={numbers.loss_scale:g}, one skipped step too many"


def _bad_step_of(
    numbers: StepNumbers, bad: FirstBad, num_micro_batches: int, position: Any
) -> BadStep:
    origin = Origin(
        bad.micro_batch,
        "backward" if bad.kind in GRADIENTS else "forward",
        bad.name,
        bad.input_low,
        bad.input_high,
    )
    told = _bad_step(numbers, origin, num_micro_batches, position)
    return msgspec.structs.replace(told, rank=bad.rank, op=bad.op)


def _bad_step(
    numbers: StepNumbers, origin: Origin | None, num_micro_batches: int, position: Any
) -> BadStep:
    found = origin or Origin(0, "forward", "")
    low, high = found.input_low, found.input_high
    return BadStep(
        schema=BAD_STEP_SCHEMA,
        step=numbers.step,
        micro_batch=found.micro_batch + 1,
        num_micro_batches=num_micro_batches,
        what=numbers.what_is_bad(),
        where=found.where if origin else "not found",
        name=found.name,
        input_low=None if low is None else str(low),
        input_high=None if high is None else str(high),
        loss=str(numbers.loss),
        grad_norm=str(numbers.grad_norm),
        loss_scale=numbers.loss_scale,
        learning_rate=numbers.learning_rate,
        position=msgspec.to_builtins(position),
    )
