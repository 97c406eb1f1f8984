"""Pipeline schedules: the time of a step over stages, its bubble, and what waits in flight.

Closed forms take numbers or arrays alike; ``replay`` runs the same orders operation by operation
and is what they are tested against. Knows no model and no device: seconds in, seconds out.

p stages, m micro-batches, v chunks of blocks per stage, f and b seconds of one micro-batch's
forward and backward through a whole stage, c seconds of a message to the next one.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from brimful.cost.trajectory import Array

Formula = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
"""Schedules that have closed forms; ``zero-bubble`` with one stage on each device."""
WEIGHT_SHARE = 0.5
"""Of a backward, the gradients of weights: one matrix product of two (arXiv:2401.10241)."""
Numbers = Array | float


class Pipeline(NamedTuple):
    """The shape of a pipeline: [strategies] each, or one number.

    Attributes:
        stages: p, devices in a row.
        num_micro_batches: m of one optimizer step.
        chunks: v, pieces of the model on each device; 1 unless interleaved.
    """

    stages: Numbers
    num_micro_batches: Numbers
    chunks: Numbers = 1


class StageSeconds(NamedTuple):
    """Of the slowest stage, one micro-batch through all its chunks.

    Attributes:
        forward_s: f.
        backward_s: b, recomputation too.
        send_s: c, activations of one micro-batch to the next device.
    """

    forward_s: Numbers
    backward_s: Numbers
    send_s: Numbers = 0.0


def pipeline_seconds(schedule: Formula, shape: Pipeline, times: StageSeconds) -> Array:
    """Predict forward and backward of all micro-batches.

    Every micro-batch passes the slowest stage, m (f + b), and the pipeline fills and drains once.
    Exact for equal stages without messages; see ``_message_seconds`` for those. Uneven stages take
    less than this: only the slowest is always busy.

    ``shape``: p, m and v; m a multiple of p where v is over 1. Returns seconds.
    """
    micro = np.asarray(shape.num_micro_batches) * (times.forward_s + times.backward_s)
    return np.asarray(
        micro + bubble_seconds(schedule, shape, times) + message_seconds(schedule, shape, times)
    )


def bubble_seconds(schedule: Formula, shape: Pipeline, times: StageSeconds) -> Array:
    """Predict how long a device waits while the pipeline fills and drains.

    ``gpipe`` and ``1f1b``: (p - 1) (f + b) (arXiv:1811.06965, arXiv:2006.09503).
    ``interleaved``: (p - 1) (f + b) / v (arXiv:2104.04473, section 2.2).
    ``zero-bubble``: ZB-H1, (p - 1) (f + b - 2 w), w the gradients of weights (arXiv:2401.10241,
    table 2, where b counts without w).
    """
    idle = np.asarray(times.forward_s) + times.backward_s
    if schedule == "zero-bubble":
        idle = idle - 2 * WEIGHT_SHARE * np.asarray(times.backward_s)
    return np.asarray((np.asarray(shape.stages) - 1) * idle / shape.chunks)


def bubble_share(schedule: Formula, shape: Pipeline, times: StageSeconds) -> Array:
    """Return the bubble as a share of the pipeline's time without messages, 0 to 1."""
    silent = times._replace(send_s=0.0)
    total = pipeline_seconds(schedule, shape, silent)
    return bubble_seconds(schedule, shape, silent) / total


def message_seconds(schedule: Formula, shape: Pipeline, times: StageSeconds) -> Array:
    """Return what messages add that kernels do not hide.

    GPipe and interleaved stages have work at hand while a message travels: each of the v p - 1 hops
    costs once, there and back. The others hold p micro-batches at most, so that every round of p
    waits: 2 (p - 1) c ceil(m / p). Known error against ``replay``: below 6 % of a step where a
    message takes a tenth of a forward.
    """
    stages = np.asarray(shape.stages)
    streams = schedule in {"gpipe", "interleaved"}
    rounds = 1.0 if streams else np.ceil(shape.num_micro_batches / stages)
    hops = np.where(stages > 1, shape.chunks * stages - 1, 0)
    return np.asarray(2 * hops * times.send_s * rounds)


def in_flight(schedule: Formula, shape: Pipeline, stage: Numbers) -> Array:
    """Count the micro-batches whose activations a stage keeps at its fullest.

    ``gpipe``: all m. ``1f1b``: min(m, p - stage). ``interleaved``: min(m v, 2 (p - stage - 1) +
    (v - 1) p + 1) chunks, each 1 / v of a stage (torch.distributed.pipelining's
    ``ScheduleInterleaved1F1B``, Megatron-LM's warm-up). ``zero-bubble``: as 1f1b, and a micro-batch
    counts until the gradients of its weights are there: min(m, p).

    ``stage``: counted from 0, the one that has the embedding. Returns micro-batches through a whole
    stage; a fraction where chunks are interleaved.
    """
    return np.asarray(_IN_FLIGHT[schedule](shape, np.asarray(stage)))


def _all(shape: Pipeline, stage: Array) -> Array:
    return np.asarray(shape.num_micro_batches + 0 * stage)


def _one_forward_one_backward(shape: Pipeline, stage: Array) -> Array:
    return np.minimum(shape.num_micro_batches, np.asarray(shape.stages) - stage)


def _interleaved(shape: Pipeline, stage: Array) -> Array:
    stages, chunks = np.asarray(shape.stages), np.asarray(shape.chunks)
    warm = 2 * (stages - stage - 1) + (chunks - 1) * stages + 1
    return np.asarray(np.minimum(shape.num_micro_batches * chunks, warm) / chunks)


def _zero_bubble(shape: Pipeline, stage: Array) -> Array:
    return np.minimum(shape.num_micro_batches, np.asarray(shape.stages) + 0 * stage)


_IN_FLIGHT: dict[Formula, Callable[[Pipeline, Array], Array]] = {
    "gpipe": _all,
    "1f1b": _one_forward_one_backward,
    "interleaved": _interleaved,
    "zero-bubble": _zero_bubble,
}
