"""A pipeline's step by ``torch.distributed.pipelining``: its stages, its orders, its messages.

What is ours: micro-batches all have one shape, since buffers for what stages tell each other are
made once; a loss is a sum over the step's own count of targets, so that nothing is averaged; and
phases are announced. Shapes and types of messages are said beforehand (torch would find them out by
sending), and checked against what a stage returns.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from brimful.build.batch import Batch
from brimful.build.gradient_clip import Row
from brimful.build.parallel.place import row_group
from brimful.build.parallel.stages import Share, StagePart
from brimful.build.parallel.tied import Tied, add_up, tied_ends
from brimful.build.phases import phase
from brimful.build.stream import stream_dtype
from brimful.errors import UnsupportedError
from brimful.techniques.parallel.stages import ONE_STAGE, Schedule
from brimful.values.job import Job
from brimful.values.strategy import Strategy, num_micro_batches, split_of

SCHEDULES: dict[Schedule, Any] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
    "dualpipev": ScheduleDualPipeV,
}
Differentiated = Callable[[torch.Tensor], torch.Tensor]


class Stage(PipelineStage):  # type: ignore[misc]  # torch is untyped to mypy
    """Torch's stage, whose forward and backward are phases of ours.

    Attributes:
        program: Whose phases they are.
        message: What a stage hands on, without bytes.
    """

    program: Any = None
    message: torch.Tensor | None = None

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Run one micro-batch forward; see torch's."""
        with phase("forward", self.program):
            out = super().forward_one_chunk(*args, **kwargs)
        if not self.is_last:
            _check_message(out, self.message)
        return out

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> None:
        """Run one micro-batch backward, of its inputs at least; see torch's."""
        if self.has_backward:
            with phase("backward", self.program):
                super().backward_one_chunk(*args, **kwargs)

    def backward_weight_one_chunk(self, *args: Any, **kwargs: Any) -> None:
        """Compute the gradients of weights that were left for later; see torch's."""
        if self.has_backward:
            with phase("backward", self.program):
                super().backward_weight_one_chunk(*args, **kwargs)

    def _get_init_p2p_neighbors_ops(self) -> list[Any]:
        """Greet the stages of other devices; torch 2.11 greets those of this one too, and waits."""
        ops = super()._get_init_p2p_neighbors_ops()
        return [op for op in ops if op.group_peer != self.group_rank]

    def get_local_bwd_output(self, mb_index: int) -> Any:
        """Return the gradient for a stage on this device; see torch's, which asks when judging."""
        return super().get_local_bwd_output(mb_index) if self.has_backward else ()

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        """Take the gradient from a stage on this device; see ``get_local_bwd_output``."""
        if self.has_backward:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)


def _check_message(out: torch.Tensor, said: Any) -> None:
    """Hold what a stage hands on to what the next one makes room for."""
    if (out.shape, out.dtype) != (said.shape, said.dtype):
        raise UnsupportedError(
            f"a stage hands on {tuple(out.shape)} of {out.dtype} and the next one was told "
            f"{tuple(said.shape)} of {said.dtype}; use pp=1"
        )


class Site(NamedTuple):
    """What is run, how, and where.

    Attributes:
        job: Says the shape and type of what stages hand on.
        strategy: Says how the pipeline is laid out.
        device: Of this process.
        mesh: Of ``build_mesh``.
    """

    job: Job
    strategy: Strategy
    device: torch.device
    mesh: DeviceMesh | None


class Pipeline:
    """This device's stages and the order in which they work.

    Attributes:
        parts: What the stages run, in the order of the model.
        row: The devices of the pipeline.
        tied: This device's copy of the tied embedding; None where it has none of two.
        num_micro_batches: That go through in one call.
        rows: Of a micro-batch.
        seq_len: Tokens of a row.
    """

    def __init__(
        self, parts: Sequence[StagePart], stages: Sequence[Stage], site: Site, tied: Tied | None
    ) -> None:
        """Put stages in order.

        ``site``: says the order, and how many micro-batches there are.
        """
        schedule = site.strategy.pp_schedule
        self.parts, self._stages = tuple(parts), tuple(stages)
        self.tied = tied
        repeated = frozenset() if tied is None or tied.is_first else frozenset({tied.weight})
        self.row = Row(row_group(site.mesh), repeated)
        self.num_micro_batches = num_micro_batches(site.job, site.strategy)
        self.rows, self.seq_len = site.strategy.micro_batch, site.job.seq_len
        self._losses: list[torch.Tensor] = []
        self._differentiated: Differentiated = _as_it_is
        self._schedule = SCHEDULES[schedule](
            stages[0] if schedule in ONE_STAGE else list(stages),
            self.num_micro_batches,
            loss_fn=self._loss,
            scale_grads=False,
        )

    def step(self, batch: Batch, differentiated: Differentiated) -> list[torch.Tensor]:
        """Run forward and backward of every micro-batch; gradients accumulate.

        ``batch``: all micro-batches of the step one behind the other, on the device.
        ``differentiated``: makes of a micro-batch's loss what is differentiated: the scaled one.
        Returns the losses, detached, where the last stage is; else nothing.
        """
        losses = self._run(self._schedule.step, batch, differentiated)
        if self.tied is not None:
            add_up(self.tied)
        return losses

    def judge(self, batch: Batch) -> list[torch.Tensor]:
        """Run forward only; see ``step``."""
        return self._run(self._schedule.eval, batch, _as_it_is)

    def bind(self, program: Any, share: Share) -> None:
        """Say for which program parts are run, and how."""
        for part, stage in zip(self.parts, self._stages, strict=True):
            part.share, stage.program = share, program

    def _run(
        self, run: Callable[..., Any], batch: Batch, differentiated: Differentiated
    ) -> list[torch.Tensor]:
        self._losses, self._differentiated = [], differentiated
        tokens = (batch.inputs,) if self.parts[0].is_first else ()
        fields = {name: x for name, x in batch._asdict().items() if x is not None}
        run(*tokens, target=batch.labels, return_outputs=False, **fields)
        return self._losses

    def _loss(self, loss: torch.Tensor, _target: torch.Tensor) -> torch.Tensor:
        """Keep a micro-batch's loss, which the last stage itself computes."""
        self._losses.append(loss.detach())
        return self._differentiated(loss)


def _as_it_is(loss: torch.Tensor) -> torch.Tensor:
    return loss


def build_pipeline(
    model: Any, parts: Sequence[StagePart], called: Sequence[nn.Module], site: Site
) -> Pipeline:
    """Make this device's stages of a pipeline.

    ``called``: what each of them is called through, e.g. DDP. ``site``: what is run, how, and
    where.
    """
    message = _message(model, site.job, site.strategy)
    pairs = zip(parts, called, strict=True)
    stages = [_stage(part, module, message, site) for part, module in pairs]
    tied = tied_ends(model, site.job, site.strategy, site.mesh)
    return Pipeline(parts, stages, site, tied)


def _stage(part: StagePart, module: nn.Module, message: torch.Tensor, site: Site) -> Stage:
    rows, seq_len = site.strategy.micro_batch, site.job.seq_len
    tokens = torch.empty((rows, seq_len), dtype=torch.int64, device="meta")
    loss = torch.empty((), dtype=torch.float32, device="meta", requires_grad=True)
    stage = Stage(
        module,
        part.index,
        split_of(site.strategy).num_stages,
        site.device,
        input_args=tokens if part.is_first else message,
        output_args=loss if part.is_last else message,
        group=row_group(site.mesh),
    )
    stage.message = message
    return stage


def _message(model: Any, job: Job, strategy: Strategy) -> torch.Tensor:
    """Return what a stage hands on, without bytes: hidden states in the type of the stream.

    Where matrices are cut each device of the cut has its own tokens.
    """
    dtype = stream_dtype(model, job, strategy)
    rows, tokens = strategy.micro_batch, job.seq_len
    if strategy.tp > 1:
        rows, tokens = 1, rows * tokens // strategy.tp
    shape = (rows, tokens, job.model.hidden_size)
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)
