"""AdamW with moments of four bits: torchao's update (``low_bit``)."""

import torch

from brimful.build.optimizers.base import Group
from brimful.build.optimizers.low_bit import in_few_bits
from brimful.techniques.optimizers.adamw_4bit import FOUR_BITS
from brimful.values.job import Job


def build(groups: list[Group], job: Job) -> torch.optim.Optimizer:
    """Make it.

    Raises UnsupportedError: torchao or a compiler is missing.
    """
    return in_few_bits(groups, job, FOUR_BITS)
