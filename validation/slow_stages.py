"""A pipeline whose stages are slowed down, and when each of its operations began and ended."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from cases import Case
from group import Happened, Turn

from brimful.build.assemble import build_program
from brimful.build.batch import Batch, count_targets
from brimful.build.parallel.place import pipeline_rank
from brimful.build.pipelined import pipelined_steps
from brimful.build.program import Program
from brimful.cost.pipeline import WEIGHT_SHARE

_NUM_READINGS = 1
_NUM_TRIPS = 21
_CPU = torch.device("cpu")


def message_seconds(case: Case) -> float:
    """Send a stage's message there and back between the first two processes; half of the median."""
    job, rank = case.job, dist.get_rank()
    tensor = torch.zeros(case.strategy.micro_batch, job.seq_len, job.model.hidden_size)
    trips = []
    for _ in range(_NUM_TRIPS if rank < 2 else 0):  # noqa: PLR2004 - there and back
        began = time.perf_counter()
        for sends in (rank == 0, rank == 1):
            work = dist.isend(tensor, 1 - rank) if sends else dist.irecv(tensor, 1 - rank)
            work.wait()
        trips.append((time.perf_counter() - began) / 2)
    dist.barrier()
    return statistics.median(trips) if trips else 0.0


def slowed_step(turn: Turn, batches: Sequence[Batch]) -> tuple[tuple[Happened, ...], float]:
    """Run a step's micro-batches several times, and tell of the one that took the median.

    Args:
        turn: Says how long each device waits.
        batches: Of the step.

    Returns:
        What this device did, and seconds until the last device was done.
    """
    program = build_program(turn.case.job, turn.case.strategy, _CPU)
    clock = _Clock(program, *turn.slowed_s[pipeline_rank(turn.case.strategy)])
    _timed(program, clock, batches)  # the first one makes room for messages
    readings = [_timed(program, clock, batches) for _ in range(_NUM_READINGS)]
    return sorted(readings, key=lambda reading: reading[1])[_NUM_READINGS // 2]


def _timed(
    program: Program, clock: "_Clock", batches: Sequence[Batch]
) -> tuple[tuple[Happened, ...], float]:
    clock.happened.clear()
    dist.barrier()
    pipelined_steps(program, batches, num_targets=count_targets(batches))
    began = _of_all(clock.happened[0].start_s, dist.ReduceOp.MIN)
    ended = _of_all(clock.happened[-1].end_s, dist.ReduceOp.MAX)
    happened = tuple(
        msgspec.structs.replace(op, start_s=op.start_s - began, end_s=op.end_s - began)
        for op in clock.happened
    )
    return happened, ended - began


def _of_all(moment_s: float, which: Any) -> float:
    """Return the first or last of all devices' moments: processes of a machine share a clock."""
    moments = torch.tensor([moment_s], dtype=torch.float64)
    dist.all_reduce(moments, op=which)
    return float(moments)


class _Clock:
    """Lets every operation of this device's stages wait, and notes when it was."""

    def __init__(self, program: Program, forward_s: float, backward_s: float) -> None:
        self.happened: list[Happened] = []
        assert program.pipeline is not None
        stages = program.pipeline._stages  # noqa: SLF001 - what the schedule calls
        num = len(stages)
        for chunk, stage in enumerate(stages):
            stage.forward_one_chunk = self._slowed(
                stage.forward_one_chunk, lambda _split: ("forward", forward_s / num), chunk
            )
            stage.backward_one_chunk = self._slowed(
                stage.backward_one_chunk,
                lambda split: (
                    ("input", backward_s / num * (1 - WEIGHT_SHARE))
                    if split
                    else ("backward", backward_s / num)
                ),
                chunk,
            )
            stage.backward_weight_one_chunk = self._slowed(
                stage.backward_weight_one_chunk,
                lambda _split: ("weight", backward_s / num * WEIGHT_SHARE),
                chunk,
            )

    def _slowed(
        self,
        run: Callable[..., Any],
        what: Callable[[bool], tuple[str, float]],  # whether the backward is split
        chunk: int,
    ) -> Callable[..., Any]:
        def slow(micro_batch: int, *args: Any, **kwargs: Any) -> Any:
            kind, wait_s = what(not kwargs.get("full_backward", True))
            start_s = time.perf_counter()
            time.sleep(wait_s)
            out = run(micro_batch, *args, **kwargs)
            self.happened.append(
                Happened(
                    kind=kind, micro_batch=micro_batch, chunk=chunk,
                    start_s=start_s, end_s=time.perf_counter(),
                )
            )  # fmt: skip
            return out

        return slow
