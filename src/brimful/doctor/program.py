"""The watcher on a program of the build path, and runs of a step that change nothing."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import msgspec
import torch
from torch import nn

from brimful.build.batch import Batch
from brimful.build.drawing import draw_anew
from brimful.build.parallel import sync_gradients
from brimful.build.precision.kept import without_borders
from brimful.build.program import Program
from brimful.build.step import micro_step
from brimful.doctor.ops import BadOps
from brimful.doctor.records import LOSS, FirstBad, Kind, Row, Watched
from brimful.doctor.seen import Compared
from brimful.doctor.watcher import ALL_KINDS, Watcher
from brimful.values.job import QUANTIZED
from brimful.values.strategy import gathers, world_size

MOST_IN_FP64 = 2**28
"""Parameters of a model that is run in fp64: 2 GiB of them."""
_SEARCHED: frozenset[Kind] = ALL_KINDS - {"update"}
_COMPARED: frozenset[Kind] = frozenset({"activation", "output-gradient", "gradient"})


class PlainStep(msgspec.Struct, frozen=True, kw_only=True):
    """What one step learns from.

    Attributes:
        micro_batches: This process's own, on the host.
        num_targets: Unmasked targets of the whole step, on all devices.
        number: Which step it is, from 1; what is dropped hangs on it.
    """

    micro_batches: Sequence[Batch]
    num_targets: int
    number: int = 1


def watcher_of(
    program: Program,
    *,
    every: int = 1,
    kinds: frozenset[Kind] = ALL_KINDS,
    with_ranges: bool = False,
    rank: int = 0,
) -> Watcher:
    """Make the watcher of a program; see ``Watcher``."""
    return Watcher(
        program.model,
        program.optimizer,
        every=every,
        called=program.root,
        also={LOSS: program.loss} if isinstance(program.loss, nn.Module) else None,
        kinds=kinds,
        with_ranges=with_ranges,
        rank=rank,
    )


def find_first_bad(
    program: Program, step: PlainStep, *, loss_scale: float | None, number: int = 1, rank: int = 0
) -> FirstBad | None:
    """Run a step's forwards and backwards once more and look for its first Inf or NaN.

    Of many devices all must call this: each runs its whole part, and watches its own gradients
    before they are reduced. Nothing is updated.

    ``program``: with the weights that the step began with; its gradients are dropped.
    """
    watcher = watcher_of(program, kinds=_SEARCHED, with_ranges=True, rank=rank)
    ops = BadOps(watcher.inside)
    with watcher.step(number, loss_scale=loss_scale or 1.0), ops:
        run_without_update(program, step, loss_scale=loss_scale)
    found = watcher.watched().bads
    if not found:
        return None
    return msgspec.structs.replace(found[0], op=ops.op_of(found[0]))


def watch_without_update(program: Program, step: PlainStep, *, loss_scale: float | None) -> Watched:
    """Run a step's forwards and backwards at a loss scale and watch them; nothing is updated."""
    watcher = watcher_of(program, kinds=_COMPARED)
    with watcher.step(1, loss_scale=loss_scale or 1.0):
        run_without_update(program, step, loss_scale=loss_scale)
    return watcher.watched()


def run_without_update(program: Program, step: PlainStep, *, loss_scale: float | None) -> None:
    """Run a step's forwards and backwards; its gradients are dropped, whatever they were."""
    program.optimizer.zero_grad(set_to_none=True)
    try:
        with scaled_by(program, loss_scale), torch.autograd.set_multithreading_enabled(False):
            accumulate(program, step)
    finally:
        program.optimizer.zero_grad(set_to_none=True)


def accumulate(program: Program, step: PlainStep) -> None:
    """Run a step's forwards and backwards as a training step does; gradients stay."""
    for number, batch in enumerate(step.micro_batches):
        is_last = number == len(step.micro_batches) - 1
        sync_gradients(program.root, program.strategy, is_last=is_last)
        draw_anew(program, step=step.number, number=number)
        micro_step(program, batch, num_targets=step.num_targets)


@contextlib.contextmanager
def scaled_by(program: Program, loss_scale: float | None) -> Iterator[None]:
    """Multiply losses by this inside the block, whatever the scaler has come to since."""
    if program.scaler is None or loss_scale is None:
        yield
        return
    now = program.scaler.scale
    program.scaler.scale = loss_scale
    try:
        yield
    finally:
        program.scaler.scale = now


def has_reference(program: Program) -> bool:
    """Whether a step can be run in fp32 as well: where parameters are, or can be, widened."""
    adapter, strategy = program.job.adapter, program.strategy
    if adapter is not None and adapter.base in QUANTIZED:
        return False
    if gathers(strategy) or strategy.engine != "torch":
        return False
    narrow = any(p.dtype != torch.float32 for p in program.model.parameters())
    return not narrow or world_size(strategy) == 1


def compare(program: Program, step: PlainStep) -> Compared | None:
    """Watch a step as the recipe runs it, and in a wide format; nothing is updated.

    The wide run has neither autocast nor a loss scale. In a process that trains alone it is in
    fp64, if the model is not large (``MOST_IN_FP64``) and computes in it; else in fp32. Parameters
    are widened meanwhile, which loses nothing in either direction.

    ``program``: the program; of many devices all call this. Returns both; None where the step
    cannot be run in fp32 (``has_reference``).
    """
    if not has_reference(program):
        return None
    scale = None if program.scaler is None else program.scaler.scale
    recipe = watch_without_update(program, step, loss_scale=scale).rows
    num_weights = sum(p.numel() for p in program.model.parameters())
    if world_size(program.strategy) == 1 and num_weights <= MOST_IN_FP64:
        with contextlib.suppress(RuntimeError):  # a module that has a type of its own
            return Compared(recipe=recipe, plain=_plain(program, step, torch.float64), wide="fp64")
    return Compared(recipe=recipe, plain=_plain(program, step, torch.float32), wide="fp32")


def _plain(program: Program, step: PlainStep, dtype: torch.dtype) -> tuple[Row, ...]:
    job = msgspec.structs.replace(program.job, precision="fp32", loss_scale=None, keep_fp32=())
    plain = dataclasses.replace(program, job=job, scaler=None)
    batches = [_with_inputs(batch, dtype) for batch in step.micro_batches]
    wide = PlainStep(micro_batches=batches, num_targets=step.num_targets)
    with _widened(program.model, dtype), without_borders():
        return watch_without_update(plain, wide, loss_scale=None).rows


def _with_inputs(batch: Batch, dtype: torch.dtype) -> Batch:
    inputs = batch.inputs
    return batch._replace(inputs=inputs.to(dtype)) if inputs.is_floating_point() else batch


@contextlib.contextmanager
def _widened(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    narrow = {
        x: x.dtype
        for x in [*model.parameters(), *model.buffers()]
        if x.is_floating_point() and x.dtype != dtype
    }
    for tensor in narrow:
        tensor.grad = None
        tensor.data = tensor.data.to(dtype)
    try:
        yield
    finally:
        for tensor, held in narrow.items():
            tensor.grad = None
            tensor.data = tensor.data.to(held)
