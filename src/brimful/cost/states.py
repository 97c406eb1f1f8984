"""Bytes that live across phases: parameters, gradients, optimizer state, on one device of many."""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.family import Family, family_shards
from brimful.cost.shapes import Shape, parameter_shapes
from brimful.cost.shards import first_shard, largest_share, padded
from brimful.cost.spread import holds_whole
from brimful.cost.trained import frozen_bytes, num_trained, trained_recipe, trained_shapes
from brimful.cost.update import Update, update_of
from brimful.job import Job
from brimful.models.config import parameter_count

Bytes = NDArray[np.float64]


class States(NamedTuple):
    """Bytes that live across phases: numbers, or [strategies] each.

    Attributes:
        frozen: Of parameters that do not train.
        constants: Of what a quantised weight cannot be read without.
        trained: Of those that do: parameters x bytes of the recipe.
        buckets: Of DDP's gradients, which exist from the start.
        gradients: Of all other gradients, while they exist.
        optimizer_state: What the update keeps, masters included.
    """

    frozen: Any
    constants: Any
    trained: Any
    buckets: Any
    gradients: Any
    optimizer_state: Any

    @property
    def parameters(self) -> Any:
        """Of all parameters."""
        return self.frozen + self.trained

    @property
    def loaded(self) -> Any:
        """Of all that is there before the first step."""
        return self.parameters + self.constants + self.buckets


def states(job: Job, update: Update) -> States:
    """Compute the bytes of parameters, gradients and optimizer state on one device.

    Args:
        job: What is trained.
        update: Its optimizer's (``update_of``).
    """
    recipe, trained = trained_recipe(job), num_trained(job)
    parameters, constants = frozen_bytes(job)
    return States(
        frozen=parameters,
        constants=constants,
        trained=trained * recipe.parameter,
        buckets=0,
        gradients=trained * recipe.gradient,
        optimizer_state=update.kept,
    )


def updates_of(job: Job, family: Family, kernels: str) -> Update:
    """Follow the updates of what one device keeps state of, once per number of shards.

    Args:
        job: What is trained.
        family: The strategies.
        kernels: ``cuda`` or ``cpu``.
    """
    shards, place = np.unique(family_shards(family), return_inverse=True)
    whole = trained_shapes(job)
    each = [update_of(job, kernels, _updated(whole, family, int(n))) for n in shards]
    columns = np.array([update[:-1] for update in each], dtype=np.float64)
    kept, first_peak, transient = columns[place.reshape(-1)].T
    return Update(kept, first_peak, transient, each[0].why)


def _updated(whole: Sequence[Shape], family: Family, num_shards: int) -> Sequence[Shape]:
    """List the shapes that one device updates: whole ones, its share of whole ones, or shards."""
    if family.zero == 0 or num_shards == 1:
        return whole
    if family.zero == 1:
        return largest_share(whole, num_shards).shapes
    return [first_shard(shape, num_shards) for shape in whole]


def states_of(job: Job, family: Family, updates: Update) -> States:
    """Compute the bytes of parameters, gradients and optimizer state of a family.

    Args:
        job: What is trained.
        family: The strategies.
        updates: Their optimizers' (``updates_of``).
    """
    recipe, shards = trained_recipe(job), family_shards(family)
    whole = family.zero in {0, 1}
    held = _held(trained_shapes(job), shards, whole=whole)
    buckets = held * recipe.gradient * (family.is_spread and whole)
    views = 0 if holds_whole(job, family) else buckets
    frozen = frozen_bytes(job)
    every = parameter_shapes(job.model)
    share = _held(every, shards, whole=whole) / parameter_count(job.model).total
    return States(
        frozen=share * frozen.parameters,
        constants=share * frozen.constants,
        trained=held * recipe.parameter,
        buckets=buckets,
        gradients=held * recipe.gradient - views,
        optimizer_state=updates.kept,
    )


def _held(shapes: Sequence[Shape], shards: Bytes, *, whole: bool) -> Bytes:
    """Count the numbers that one device holds of parameters: [strategies]."""
    if whole:
        return np.full_like(shards, sum(map(prod, shapes)))
    numbers, place = np.unique(shards, return_inverse=True)
    each: Bytes = padded(shapes, numbers) / numbers
    return each[place.reshape(-1)]
