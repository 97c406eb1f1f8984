"""A program's step, and its judging, through the stages of a pipeline.

Micro-batches of a pipeline all have one shape, for which torch makes room once: what rows and
tokens a micro-batch lacks is padded, and counts for nothing.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional

from brimful.build.batch import IGNORE_INDEX, Batch, blank
from brimful.build.parallel import averaged_over, give_gradients, lend_gradients, reshard
from brimful.build.parallel.pipeline import Pipeline
from brimful.build.parallel.stages import Share, StagePart
from brimful.build.phases import phase
from brimful.build.precision import forward_context, micro_batch_context
from brimful.build.program import Program
from brimful.build.tasks import task_of
from brimful.values.strategy import gathers

_PADDING = Batch(inputs=0, labels=IGNORE_INDEX, segments=0)
"""What a row or a token is filled with that counts for nothing."""


def pipelined_steps(
    program: Program, micro_batches: Sequence[Batch], *, num_targets: int
) -> list[torch.Tensor]:
    """Run forward and backward of a step's micro-batches; gradients accumulate.

    ``micro_batches``: this process's part of the step, on the host. ``num_targets``: unmasked
    targets of the whole step, on all devices. Returns shares of the step's loss, detached, on the
    device: one 0 where the last stage is not.
    """
    pipeline = _bound(program, num_targets)
    times = averaged_over(program.root[0])

    def differentiated(loss: torch.Tensor) -> torch.Tensor:
        scaled = loss if program.scaler is None else program.scaler.scaled(loss)
        return scaled if times == 1 else scaled * times

    with phase("pipeline", program), micro_batch_context(program.job.precision):
        batch = _joined(pipeline, micro_batches).to(program.device)
        lend_gradients(program.root)
        losses = pipeline.step(batch, differentiated)
        give_gradients(program.root)
    return losses or [torch.zeros((), device=program.device)]


def judged_share(program: Program, batches: Sequence[Batch], *, num_targets: int) -> float:
    """Return this process's share of the mean loss of a whole sample, without gradients.

    ``batches``: this process's own part of the sample, on the host.
    """
    pipeline, total = _bound(program, num_targets), 0.0
    with phase("eval", program), micro_batch_context(program.job.precision):
        for through in _in_calls(batches, pipeline.num_micro_batches):
            losses = pipeline.judge(_joined(pipeline, through).to(program.device))
            total += sum(map(float, losses))
    reshard(program.root)
    return total


def _bound(program: Program, num_targets: int) -> Pipeline:
    """Return the program's pipeline, whose stages run micro-batches of a step."""
    assert program.pipeline is not None, "the strategy has stages"
    program.pipeline.bind(program, _share(program, num_targets))
    return program.pipeline


def _share(program: Program, num_targets: int) -> Share:
    stage = task_of(program.job).stage
    assert stage is not None, "check_pipeline refuses other tasks"
    sharded = gathers(program.strategy)

    def share(part: StagePart, hidden: torch.Tensor | None, fields: dict[str, Any]) -> torch.Tensor:
        with forward_context(program.job.precision, program.device, is_sharded=sharded):
            return stage(program, part, hidden, Batch(**fields), num_targets)

    return share


def _in_calls(batches: Sequence[Batch], num: int) -> Iterator[list[Batch]]:
    """Deal batches out to calls of the pipeline, the last one filled up with blanks."""
    for start in range(0, len(batches), num):
        some = list(batches[start : start + num])
        yield some + [blank(batches[0])] * (num - len(some))


def _joined(pipeline: Pipeline, micro_batches: Sequence[Batch]) -> Batch:
    """Lay micro-batches behind one another, each of the shape that stages make room for."""
    fitted = [_fitted(batch, pipeline.rows, pipeline.seq_len) for batch in micro_batches]
    columns = (None if x[0] is None else torch.cat(x) for x in zip(*fitted, strict=True))
    return Batch(*columns)


def _fitted(batch: Batch, rows: int, seq_len: int) -> Batch:
    pairs = zip(batch, _PADDING, strict=True)
    return Batch(*(x if x is None else _padded(x, rows, seq_len, fill) for x, fill in pairs))


def _padded(x: torch.Tensor, rows: int, seq_len: int, fill: Any) -> torch.Tensor:
    """Return [rows, tokens] filled up to a shape."""
    more = (0, seq_len - x.shape[1], 0, rows - x.shape[0])
    return functional.pad(x, more, value=fill) if any(more) else x
