"""What a micro-batch computes, counted on the tape of the simulated program.

A time for what no formula covers: FLOPs and bytes are those of the traced operations, and what
turns them into seconds is the first rung's (``cost.step``). So a time of it is a prediction from a
simulated program, neither simulated nor measured.
"""

import numpy as np

from brimful.cost.step import StepWork
from brimful.job import Job
from brimful.pretend.kernels import Kernels
from brimful.pretend.recording import Recording
from brimful.simulate.run import trace
from brimful.strategy import Strategy

_MESSAGES = "c10d."
_FIRST = "step 1 "


def micro_batch_work(
    job: Job, strategy: Strategy, *, imitate: Kernels, parted: int = 1
) -> StepWork:
    """Trace a step and add up the forward and backward of its first micro-batch.

    Its gradients are new, as they are in every micro-batch where each is reduced by itself.

    Args:
        job: What is trained.
        strategy: How it is run on one device.
        imitate: Whose kernels.
        parted: Devices that part experts (``trace``).

    Returns:
        [1] each, of one micro-batch; the optimizer's work is not among it.
    """
    recording = trace(
        job, strategy, imitate=imitate, count_costs=True, num_steps=1, parted=parted
    ).recording
    return _work_of(recording)


def _work_of(recording: Recording) -> StepWork:
    wanted = {recording.phases.index(f"{_FIRST}{name}") for name in ("forward", "backward")}
    costs = [c for c in recording.costs if c.phase in wanted and not c.op.startswith(_MESSAGES)]
    matrix, attention = sum(c.matrix_flops for c in costs), sum(c.attention_flops for c in costs)
    moved = sum(sum(c.moved_bytes) for c in costs)
    amounts = (matrix, attention, moved, len(costs))
    return StepWork(*(np.array([amount], dtype=np.float64) for amount in amounts))
