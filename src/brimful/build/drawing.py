"""What a micro-batch drops: random numbers that hang on it alone, whatever ran before it."""

import hashlib

import torch

from brimful.build.parallel.place import data_rank
from brimful.build.program import Program
from brimful.techniques.dropout import drops
from brimful.values.strategy import data_parallel

_SEED_BYTES = 8


def draw_anew(program: Program, *, step: int, number: int) -> None:
    """Begin the random numbers of a micro-batch, so that a run that was killed draws them again.

    They hang on the job's seed, the step and which of the step's micro-batches it is, counted over
    all devices, so that two devices that share a step draw what one does that runs all of it.

    ``step``: from 1. ``number``: of this device's micro-batches, from 0.
    """
    if not drops(program.job):
        return
    strategy = program.strategy
    place = number * data_parallel(strategy) + data_rank(strategy)
    told = f"{program.job.seed} {step} {place}".encode()
    digest = hashlib.blake2b(told, digest_size=_SEED_BYTES).digest()
    torch.manual_seed(int.from_bytes(digest))
