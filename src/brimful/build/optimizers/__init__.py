"""What makes each optimizer: a file each, called as its record in ``techniques/optimizers`` is.

Every optimizer is a ``torch.optim.Optimizer`` whose state is tensors under plain keys and exists
from the first step on (``build/first_state.py``).
"""

from functools import partial

import torch
from torch import nn

from brimful.build.optimizers.base import Parted, Rule, parameter_groups, rule_named
from brimful.build.precision import TECHNIQUES
from brimful.build.precision.masters import MasterWeights
from brimful.values.job import Job


def build_optimizer(
    job: Job, model: nn.Module, *, parted: Parted | None = None
) -> torch.optim.Optimizer:
    """Make the job's optimizer over every parameter that trains, decay on matrices only.

    ``model``: on its device, sharded where it is to be. ``parted``: makes the optimizer of which
    this device keeps a part (ZeRO-1); None: all of it. Raises UnsupportedError: the rule needs a
    library that is not installed.
    """
    groups, rule = parameter_groups(job, model), rule_for(job)
    return rule(groups) if parted is None else parted(groups, rule, job.learning_rate)


def rule_for(job: Job) -> Rule:
    """Return what makes the job's optimizer from groups of parameters, masters included."""
    rule = rule_named(job.optimizer)
    if TECHNIQUES[job.precision].has_masters:
        return partial(MasterWeights, rule=lambda masters: rule(masters, job))
    return lambda groups: rule(groups, job)
